"""Finds, lists and reads run folders by their small records. Never fails on a damaged one."""
