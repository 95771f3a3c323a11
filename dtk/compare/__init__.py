"""Fair comparison of runs: parity first, then figures with intervals, then why. Reads run folders only."""
