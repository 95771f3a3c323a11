"""Looks at a job that runs now, from outside: finds its ranks, collects what they show, and changes nothing in them."""
