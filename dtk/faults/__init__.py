"""Faults that really happen (`fault=NAME`), so that a diagnosis can be seen and tested.

Each fault is a loop with one method that goes wrong, written as the user's code would be; the offending
line ends in the comment `fault: NAME`. With fault=none nothing of this package is imported.
"""
