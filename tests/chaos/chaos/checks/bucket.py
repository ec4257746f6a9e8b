"""At the end, the bucket has every acknowledged file of the workspace, byte by byte, including those of ended sandboxes."""

from chaos.context import Context

SYNC_DEADLINE = 120.0


def check(context: Context) -> None:
    failed = context.platform.server.run("storage", "sync", "--wait", timeout=SYNC_DEADLINE)
    if failed:
        context.violations.add("bucket", "everything is uploaded once the store can be reached", failed)
        return
    for sandbox, file in context.ledger.workspace_files():
        key = file.path.removeprefix("/opt/sentient/")
        wrong = file.difference(context.platform.bucket.read(key))
        context.ledger.count("objects compared")
        if wrong:
            whose = f"of {sandbox.id}, which is {sandbox.life.value},"
            context.violations.add("bucket", f"the object {key} {whose} {wrong[0]}", wrong[1])
