# What a sandbox is made of when nothing else is said. A place to start a template of your own from.
FROM e2bdev/base
