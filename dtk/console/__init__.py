"""What commands share on a terminal: progress, help, numbers and output."""
