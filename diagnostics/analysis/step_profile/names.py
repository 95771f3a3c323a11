"""What names of kernels, annotations and operations tell, where structure does not: the table `names.yaml`."""

from diagnostics.contract.files import patterns_beside

TEXT = patterns_beside(__file__)
AUTOGRAD = "autograd::engine::evaluate_function"
