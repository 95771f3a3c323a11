"""The gates of the built-in fault trees, in the order of the report: what ends a run before what slows it down.

The causes below a gate name it in their own file (`Cause.branch`).
"""

from diagnostics.contract.causes import Branch

BRANCHES = (
    Branch("crash", "A rank ended before the job did"),
    Branch("hang", "The job stopped making progress"),
    Branch("hang.asymmetric", "Ranks disagree about the sequence of collectives", above="hang"),
    Branch("hang.late", "A rank is late", above="hang"),
    Branch("hang.circular", "Ranks wait for each other in a circle", above="hang"),
    Branch("hang.blameless", "All ranks agree and none completes", above="hang"),
    Branch("hardware", "A device or a link failed"),
    Branch("memory", "Memory ran out or is about to"),
    Branch("memory.gathers", "More is gathered than the step needs", above="memory"),
    Branch("memory.demand", "The step itself needs more than there is", above="memory"),
    Branch("memory.lost", "Memory is held that nobody uses", above="memory"),
    Branch("numerics", "The figures went wrong"),
    Branch("slow", "A step takes longer than it has to"),
    Branch("slow.reduction", "Gradients are reduced in the wrong portions", above="slow"),
    Branch("slow.order", "Communication is not allowed to overlap", above="slow"),
    Branch("slow.units", "Parameters are gathered in the wrong portions", above="slow"),
    Branch("slow.bound", "Overlap is as good as it gets", above="slow"),
    Branch("slow.layout", "The layout divides the work badly", above="slow"),
    Branch("slow.idle", "The device waits for its host", above="slow"),
    Branch("environment", "The environment is not what was meant"),
    Branch("environment.names", "Variables that do not do what their name says", above="environment"),
    Branch("environment.settings", "Settings that cost speed or safety", above="environment"),
    Branch("environment.hardware", "The hardware is not used as it could be", above="environment"),
)
