"""Other training libraries behind the same configuration: each module has the name of the library's package."""

import pkgutil

LIBRARIES = tuple(module.name for module in pkgutil.iter_modules(__path__))
