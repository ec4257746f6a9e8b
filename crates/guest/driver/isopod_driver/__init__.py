"""The Python side of the code interpreter.

    guest (PID 1 of a sandbox) -- packets --> mother (pristine, warm) -- fork --> kernel (one per context)
    guest -- lines --> kernel, or a bridge to a Jupyter kernel of another language
    node  -- packets --> zygote (outside, one per template): a fork of it enters a sandbox and is a mother there

Only the standard library is imported when these modules are loaded; IPython, numpy, pandas and matplotlib are used when
they are installed. One process has one thread until user code starts another: forks are safe then.

`entry` chooses the mode, `wire` has the two framings, and every other file owns one thing that its name says.
"""
