"""What a strategy is: its class, its traits, the collectives that it declares, and the registry of all of them."""
