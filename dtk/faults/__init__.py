"""Faults that really happen (`fault=NAME`): a loop with one method that goes wrong, written as the user's code would
be. The offending line ends in the comment `fault: NAME`. With fault=none nothing of this package is imported.
"""
