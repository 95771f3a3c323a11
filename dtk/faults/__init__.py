"""Faults injected into a real run (`fault=NAME`): a loop with one faulty method, as a user might write it. The faulty
line ends in the comment `fault: NAME`. With fault=none nothing of this package is imported.
"""
