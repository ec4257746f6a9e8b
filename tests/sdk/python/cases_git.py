"""Git helpers, with repositories inside the sandbox only."""

from harness.cases import case
from kit import go, has


@case("git")
async def a_repository_is_made_changed_and_looked_at(sdk):
    async with sdk.sandbox() as sandbox:
        git = has(sandbox, "git")
        repo = "/home/user/repo"
        await go(git.init(repo, initial_branch="main"))
        await go(git.configure_user("Ann", "ann@example.com"))
        assert await go(git.get_config("user.name", scope="global")) == "Ann"
        await go(sandbox.files.write(f"{repo}/a.txt", "one\n"))
        status = await go(git.status(repo))
        assert status.current_branch == "main" and status.has_untracked and not status.is_clean
        await go(git.add(repo))
        assert (await go(git.status(repo))).staged_count == 1
        await go(git.commit(repo, "first", author_name="Bob", author_email="bob@example.com"))
        assert (await go(git.status(repo))).is_clean
        log = await go(sandbox.commands.run("git log --format='%an %s'", cwd=repo))
        assert log.stdout == "Bob first\n"


@case("git")
async def branches_are_made_left_and_deleted(sdk):
    async with sdk.sandbox() as sandbox:
        git, repo = has(sandbox, "git"), "/home/user/repo"
        await go(git.init(repo, initial_branch="main"))
        await go(git.configure_user("Ann", "ann@example.com"))
        await go(git.commit(repo, "empty", allow_empty=True))
        await go(git.create_branch(repo, "side"))
        found = await go(git.branches(repo))
        assert (set(found.branches), found.current_branch) == ({"main", "side"}, "side")
        await go(git.checkout_branch(repo, "main"))
        await go(git.delete_branch(repo, "side"))
        assert (await go(git.branches(repo))).branches == ["main"]


@case("git")
async def changes_are_taken_back(sdk):
    async with sdk.sandbox() as sandbox:
        git, repo = has(sandbox, "git"), "/home/user/repo"
        await go(git.init(repo))
        await go(git.configure_user("Ann", "ann@example.com"))
        await go(sandbox.files.write(f"{repo}/f", "one"))
        await go(git.add(repo, files=["f"]))
        await go(git.commit(repo, "one"))
        await go(sandbox.files.write(f"{repo}/f", "two"))
        await go(git.add(repo))
        await go(git.reset(repo, mode="mixed", target="HEAD"))
        assert not (await go(git.status(repo))).has_staged
        await go(git.restore(repo, paths=["f"]))
        assert await go(sandbox.files.read(f"{repo}/f")) == "one"


@case("git")
async def a_local_remote_is_cloned_pushed_and_pulled(sdk):
    async with sdk.sandbox() as sandbox:
        git, origin = has(sandbox, "git"), "/home/user/origin.git"
        await go(git.init(origin, bare=True, initial_branch="main"))
        await go(git.configure_user("Ann", "ann@example.com"))
        await go(git.clone(origin, path="/home/user/one"))
        await go(sandbox.files.write("one/f", "text"))
        await go(git.add("/home/user/one"))
        await go(git.commit("/home/user/one", "first"))
        await go(git.push("/home/user/one", remote="origin", branch="main", set_upstream=True))
        await go(git.clone(origin, path="/home/user/two"))
        assert await go(sandbox.files.read("two/f")) == "text"
        await go(sandbox.files.write("one/f", "more"))
        await go(git.add("/home/user/one"))
        await go(git.commit("/home/user/one", "second"))
        await go(git.push("/home/user/one"))
        await go(git.pull("/home/user/two"))
        assert await go(sandbox.files.read("two/f")) == "more"
        assert await go(git.remote_get("/home/user/two", "origin")) == origin
        await go(git.remote_add("/home/user/two", "other", "/home/user/one"))
        assert await go(git.remote_get("/home/user/two", "other")) == "/home/user/one"
