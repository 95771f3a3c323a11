"""Jobs beyond this machine: frozen (`submission`), rendered for a cluster, handed over (`submit`), and run there (`rank`)."""
