"""The closed form: memory and traffic of a step by arithmetic, for any number of ranks, without torch."""
