# Python with the code interpreter, under the name that agents ask for.
FROM e2bdev/code-interpreter
