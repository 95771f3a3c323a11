"""Faults that really happen (`fault=NAME`): a loop with one faulty method, written as a user would write it. The faulty
line ends in the comment `fault: NAME`. With fault=none nothing of this package is imported.
"""
