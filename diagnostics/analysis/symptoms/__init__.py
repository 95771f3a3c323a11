"""A job that stands still, by its log or by observations from outside: what suspicions and the first screen need."""
