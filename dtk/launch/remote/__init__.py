"""Jobs beyond this machine: frozen (`submission`), rendered, handed over (`submit`), and run there (`rank`)."""
