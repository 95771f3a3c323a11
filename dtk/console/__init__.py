"""What commands share on a terminal: progress, help, numbers, where output goes."""
