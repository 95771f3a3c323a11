"""The closed form: memory and traffic of a step from formulas, for any number of ranks, without torch."""
