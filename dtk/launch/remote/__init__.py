"""Jobs on other machines: frozen (`submission`), rendered, submitted (`submit`), and run on them (`rank`)."""
