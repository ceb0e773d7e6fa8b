"""The lab: goodput measured, experiments controlled, verdicts that rest on records. Works against any OpenAI server.

It speaks HTTP only. It may import `paceline.contracts` and `paceline.errors`; never the engine, the server or torch.

    mock        a server of known truth
    workload    what is asked, and when: a plan is a value
    load        sends a plan on time and records what came back
    metrics     one pure function from records to numbers
    stats       intervals, paired tests, search; numbers in, numbers out
    artefact    what a run leaves on disk
    quality     whether the answers are still right
    gates       pass, fail, inconclusive or invalid
    experiment  servers, cache protocol, interleaved arms
    report      what a person reads
"""
