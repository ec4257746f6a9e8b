"""The Python side of the code interpreter.

    guest (PID 1 of a sandbox) -- packets --> forkserver (pristine, warm) -- fork --> kernel (one per context)
    guest -- lines --> kernel, or a bridge to a Jupyter kernel of another language
       node  -- packets --> zygote (outside, one per template): its forks enter sandboxes and are forkservers there

Loading these modules imports only the standard library. IPython, numpy, pandas and matplotlib are used if they are
installed. Each process has one thread until user code starts another, so forking is safe.

`entry` chooses the mode, `wire` has the two framings, and every other module does what its name says.
"""
