//! Templates from steps and Dockerfiles, on a node with real isolation.
//!
//! No image is downloaded: well-known names are made of this host, and the tests of registries are in `images.rs`.

use crate::builds;

use std::time::Duration;

use isopod_testkit::{Platform, spec};
use isopod_wire::build::{BuildFailure, BuildInstruction, BuildPhase, BuildSpec};
use isopod_wire::node::{NodeApi, SandboxSpec};
use tokio_util::sync::CancellationToken;

use builds::{archive, build, context, dockerfile, messages, run, steps, try_build, user};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_told_with_their_file_and_line() {
    let platform = Platform::start(BINARY).await;
    let (_keep, directory) = context(&[("a.txt", "a")]);
    for (text, line, words) in [
        ("FROM debian\nJUMP high", 2, "unknown instruction"),
        ("FROM debian\nRUN true\nCOPY missing /", 3, "no file missing"),
        ("FROM debian\nCOPY --from=later a /", 2, "could not get the image"),
        ("FROM debian\nCOPY --from=7 a /", 2, "no stage"),
        ("FROM debian\n\nUSER nosuch\nRUN id", 4, "no user"),
        ("FROM debian\nRUN echo told; exit 3", 2, "exit code 3"),
        ("FROM no.such.host.invalid/x:1", 1, "could not get the image"),
        ("FROM debian\nADD https://example.invalid/x /x", 2, "could not fetch"),
        ("FROM debian\nADD https://example.invalid/x.git /x", 2, "git clone"),
        ("FROM debian\nCOPY https://example.invalid/x /x", 2, "use ADD"),
        ("FROM debian\nADD --checksum=md5:1 https://example.invalid/x /x", 2, "not sha256"),
        ("FROM debian\nADD --checksum=sha256:1 a.txt /x", 2, "must be a URL"),
        ("FROM debian\nCOPY a.txt /proc/sysrq-trigger", 2, "not part of the template"),
    ] {
        let error = try_build(&platform, dockerfile(text, Some(&directory))).await.0.unwrap_err();
        assert_eq!(error.place, Some(("e2b.Dockerfile".to_owned(), line)), "{text}: {error}");
        assert!(error.message.contains(words), "{text}: {error}");
    }
    let (_keep, directory) = context(&[("a.txt", "a"), (".dockerignore", &"x\n".repeat(10_001))]);
    let text = "FROM debian\nCOPY a.txt /";
    let error = try_build(&platform, dockerfile(text, Some(&directory))).await.0.unwrap_err();
    assert!(error.message.contains("more than 10000 rules"), "{error}");
    assert!(platform.node.built_templates().await.is_empty());
    platform.finish().await;
}

/// What a program made for one team is not given to another that runs the same line.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_step_is_run_again_for_another_team() {
    let platform = Platform::start(BINARY).await;
    let text = "FROM debian\nRUN head -c 16 /dev/urandom | od -An -tx1 > /key";
    let mut keys = Vec::new();
    for scope in [Some("a"), Some("a"), Some("b"), None] {
        let spec = BuildSpec { cache_scope: scope.map(str::to_owned), ..dockerfile(text, None) };
        let (built, _) = build(&platform, spec).await;
        let sandbox = platform.sandbox_of(SandboxSpec { template: built.id, ..self::spec() }).await;
        keys.push(sandbox.sh("cat /key").await.ok());
    }
    assert_eq!(keys[0], keys[1], "the same team's second build used nothing of its first");
    assert!(keys[0] != keys[2] && keys[0] != keys[3] && keys[2] != keys[3], "{keys:?}");
    platform.finish().await;
}

/// Later steps see earlier files, the shell form works, and the default directory is the user's.
#[tokio::test(flavor = "multi_thread")]
async fn a_dockerfile_becomes_a_template_that_sandboxes_are_made_of() {
    let platform = Platform::start(BINARY).await;
    let (_keep, directory) = context(&[
        ("app/main.py", "print('hi')"),
        ("app/skip.log", "x"),
        (".dockerignore", "**/*.log\n"),
        ("start.sh", "#!/bin/sh\necho started"),
    ]);
    let text = r#"
ARG BASE=debian
FROM ${BASE}:12-slim AS tools
RUN mkdir -p /out && echo tool > /out/tool

FROM node:21-slim
ARG WHO=world
ENV GREETING="hello $WHO" PATH="/opt/bin:$PATH"
WORKDIR /srv/app
COPY app/ .
COPY --from=tools --chown=user:user --chmod=0755 /out/tool /opt/bin/
COPY start.sh /
RUN chmod +x /start.sh && ls > /listing && id -un >> /listing
RUN <<EOF
set -e
pwd > /where
echo "$GREETING" > /tmp/greeting
EOF
RUN ["sh", "-c", "rm /listing.none 2>/dev/null; echo exec > /exec"]
RUN rm /where && mkdir /where && touch /where/else
COPY <<conf.ini /etc/app/
who=$WHO
conf.ini
EXPOSE 3000
LABEL a=b
"#;
    let allowed = BuildSpec { allow_host_base: true, ..dockerfile(text, Some(&directory)) };
    let (built, events) = build(&platform, allowed).await;
    assert_eq!((built.user.as_str(), built.workdir.as_str()), ("user", "/srv/app"));
    assert!(messages(&events).iter().any(|line| line.contains("using this host's files")), "{events:?}");

    let sandbox = platform.sandbox_of(SandboxSpec { template: built.id.clone(), ..spec() }).await;
    let shown = sandbox
        .sh("pwd; cat /listing /tmp/greeting /exec /etc/app/conf.ini; ls /where; stat -c '%U %a' /opt/bin/tool")
        .await;
    assert_eq!(shown.ok(), "/srv/app\nmain.py\nroot\nhello world\nexec\nwho=world\nelse\nuser 755\n");
    assert_eq!(sandbox.sh("echo $GREETING; /start.sh; id -un").await.ok(), "hello world\nstarted\nuser\n");
    // Settings of the host are there at run time and in no layer.
    assert!(!platform.state().path().join("templates").join(&built.layers[0]).join("root/etc/isopod").exists());
    platform.finish().await;
}

/// The host's files never stand in for another version unless somebody allowed it, in a Dockerfile and for the SDKs.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_of_another_version_is_an_error_unless_the_host_is_allowed() {
    let platform = Platform::start(BINARY).await;
    // No release of Node.js or Python has these.
    for (name, spec) in [
        ("node:99-slim", dockerfile("FROM node:99-slim\nRUN true", None)),
        ("python:3.99", steps("python:3.99", vec![run("true")])),
        ("node:20-alpine", dockerfile("FROM node:20-alpine\nRUN true", None)),
    ] {
        let (refused, _) = try_build(&platform, spec.clone()).await;
        let reason = refused.unwrap_err().to_string();
        assert!(reason.contains("could not get the image") && reason.contains(name), "{reason}");
        for words in ["This host could stand in for it with", "isopod image pull", "--allow-host-base"] {
            assert!(reason.contains(words), "{reason}");
        }
        let (_, events) = build(&platform, BuildSpec { allow_host_base: true, ..spec }).await;
        assert!(messages(&events).iter().any(|line| line.contains("using this host's files instead")), "{events:?}");
    }
    // A name without a version asks for none.
    build(&platform, dockerfile("FROM debian\nRUN true", None)).await;
    platform.finish().await;
}

/// The steps of E2B's SDKs.
#[tokio::test(flavor = "multi_thread")]
async fn the_sdks_steps_become_a_template() {
    let platform = Platform::start(BINARY).await;
    let (_keep, tar) = archive(&[("src/a.txt", "a"), ("src/sub/b.txt", "b")]);
    let list = vec![
        run("id -un > who; pwd >> who"),
        BuildInstruction::Copy {
            source: "src".to_owned(),
            destination: "app".to_owned(),
            owner: None,
            mode: None,
            archive: tar,
        },
        BuildInstruction::Env(vec![("COLOUR".to_owned(), "blue".to_owned())]),
        BuildInstruction::Run { command: "echo $COLOUR > /colour".to_owned(), user: Some("root".to_owned()) },
        user("root", false),
        BuildInstruction::Workdir("/work/here".to_owned()),
        run("echo x > f"),
    ];
    let (built, _) = build(&platform, steps("e2bdev/base", list)).await;
    assert_eq!((built.user.as_str(), built.workdir.as_str()), ("root", "/work/here"));
    let sandbox = platform.sandbox_of(SandboxSpec { template: built.id.clone(), ..spec() }).await;
    let files = "/home/user/who /home/user/app/a.txt /home/user/app/sub/b.txt /colour /work/here/f";
    let owners = "stat -c %U /home/user/app/a.txt /work/here/f; echo $COLOUR";
    let shown = sandbox.sh(&format!("cat {files}; {owners}")).await;
    assert_eq!(shown.ok(), "user\n/home/user\nabblue\nx\nuser\nroot\nblue\n");

    let twice = build(&platform, builds::steps_on(&built.id, vec![run("echo more > more")])).await.0;
    let sandbox = platform.sandbox_of(SandboxSpec { template: twice.id.clone(), ..spec() }).await;
    assert_eq!(sandbox.sh("cat /colour /work/here/f /work/here/more").await.ok(), "blue\nx\nmore\n");
    platform.finish().await;
}

/// The SDKs' `USER` adds a missing user, as in E2B's builder. A user of `RUN` must exist.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_step_of_the_sdks_adds_the_user() {
    let platform = Platform::start(BINARY).await;
    for (step, words) in [
        (user("../app", false), "failed to create user: \"../app\" is not a user name"),
        (
            BuildInstruction::Run { command: "whoami".to_owned(), user: Some("root123".to_owned()) },
            "invalid username: 'root123'",
        ),
    ] {
        let error = try_build(&platform, steps("debian", vec![step])).await.0.unwrap_err();
        assert_eq!((error.failure, error.phase), (BuildFailure::Invalid, BuildPhase::Step(1)));
        assert!(error.message.contains(words), "{error}");
    }
    let list = vec![
        user("app", false),
        run("exec > /tmp/who 2>&1; whoami; cd; pwd; touch mine; sudo true || echo refused"),
        user("deploy", true),
        run("sudo whoami > /tmp/sudo"),
        user("app", false),
    ];
    let (built, _) = build(&platform, steps("debian", list.clone())).await;
    assert_eq!(built.user, "app");
    let sandbox = platform.sandbox_of(SandboxSpec { template: built.id.clone(), ..spec() }).await;
    let who = "app\n/home/app\nsudo: app is not in the sudoers file\nrefused\n";
    assert_eq!(sandbox.sh("cat /tmp/who /tmp/sudo").await.ok(), format!("{who}root\n"));
    assert_eq!(sandbox.sh("stat -c %U:%G /home/app/mine").await.ok(), "app:app\n");

    let (again, events) = build(&platform, steps("debian", list)).await;
    assert_eq!(again.id, built.id);
    assert_eq!(messages(&events).iter().filter(|line| line.as_str() == "CACHED").count(), 5, "{events:?}");
    platform.finish().await;
}

/// A pattern of the SDK means what the SDK put into the archive, with its directories; a pattern of a Dockerfile means its
/// matches. Either way several files make the destination a directory.
#[tokio::test(flavor = "multi_thread")]
async fn a_pattern_that_means_several_files_copies_them_all() {
    let platform = Platform::start(BINARY).await;
    let files = [("folder/a.txt", "a"), ("folder/b.txt", "b"), ("folder/sub/c.txt", "c")];
    let (_archive, tar) = archive(&files);
    let copy = |source: &str, destination: &str| BuildInstruction::Copy {
        source: source.to_owned(),
        destination: destination.to_owned(),
        owner: None,
        mode: None,
        archive: tar.clone(),
    };
    let list = vec![copy("folder/*", "out"), copy("**/*.txt", "deep"), copy("folder/sub/c*", "one")];
    let (built, _) = build(&platform, steps("debian", list)).await;
    let sandbox = platform.sandbox_of(SandboxSpec { template: built.id, ..spec() }).await;
    let shown = sandbox.sh("cat out/a.txt out/b.txt out/sub/c.txt deep/folder/sub/c.txt one/c.txt").await;
    assert_eq!(shown.ok(), "abccc");

    let (_keep, directory) = context(&files);
    let (_packed, packed) = archive(&[("inner", "i")]);
    std::fs::copy(packed, directory.join("folder/packed.tar")).unwrap();
    std::os::unix::fs::symlink("/nowhere", directory.join("folder/link.txt")).unwrap();
    let text = "FROM debian AS first\nCOPY folder/* /out\nFROM debian\nCOPY --from=first /out/*.txt /taken\n\
                COPY folder/s* /sub\nCOPY folder/a* /single\nADD folder/[ap]* /added";
    let (built, _) = build(&platform, dockerfile(text, Some(&directory))).await;
    let sandbox = platform.sandbox_of(SandboxSpec { template: built.id, ..spec() }).await;
    let shown = sandbox.sh("cd /taken; cat a.txt b.txt c.txt; readlink link.txt; cat /sub/c.txt /single").await;
    assert_eq!(shown.ok(), "abc/nowhere\nca");
    assert_eq!(sandbox.sh("cat /added/a.txt /added/inner").await.ok(), "ai");
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_built_is_used_again_until_something_changes() {
    let platform = Platform::start(BINARY).await;
    let (_keep, directory) = context(&[("f", "1")]);
    let text: String = (0..18).map(|n| format!("RUN echo {n} > /n{n}\n")).collect();
    let text = format!("FROM debian\n{text}COPY f /f\nRUN date +%N > /last\n");
    let (first, _) = build(&platform, dockerfile(&text, Some(&directory))).await;
    let (again, events) = build(&platform, dockerfile(&text, Some(&directory))).await;
    assert_eq!((&again.id, &again.layers), (&first.id, &first.layers));
    let cached = |events: &[_]| messages(events).iter().filter(|line| line.as_str() == "CACHED").count();
    assert_eq!(cached(&events), 20);
    let sandbox = platform.sandbox_of(SandboxSpec { template: first.id.clone(), ..spec() }).await;
    assert_eq!(sandbox.sh("cat /n0 /n17 /f").await.ok(), "0\n17\n1");

    std::fs::write(directory.join("f"), "2").unwrap();
    let (changed, events) = build(&platform, dockerfile(&text, Some(&directory))).await;
    assert_eq!(cached(&events), 18);
    assert_eq!(changed.layers[..18], first.layers[..18]);
    assert_ne!(changed.id, first.id);
    // A sandbox that runs keeps the files it was made with.
    assert_eq!(sandbox.sh("cat /f").await.ok(), "1");

    let mut forced = dockerfile(&text, Some(&directory));
    forced.force = true;
    let (forced, events) = build(&platform, forced).await;
    assert_eq!(cached(&events), 0);
    assert_ne!(forced.layers, changed.layers);
    // Two at once share the work.
    let text = "FROM debian\nRUN sleep 1; date +%N > /once";
    let both = tokio::join!(build(&platform, dockerfile(text, None)), build(&platform, dockerfile(text, None)));
    assert_eq!(both.0.0.id, both.1.0.id);
    assert_eq!(cached(&both.0.1) + cached(&both.1.1), 1);
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn loops_of_links_and_sockets_in_a_context_hold_nobody_up() {
    let platform = Platform::start(BINARY).await;
    let (_keep, directory) = context(&[("app/f", "1")]);
    let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, directory.join(name)).unwrap();
    link("b", "app/a");
    link("a", "app/b");
    link("..", "app/up");
    link("/etc/shadow", "app/out");
    let _socket = std::os::unix::net::UnixListener::bind(directory.join("app/socket")).unwrap();
    let (built, _) = build(&platform, dockerfile("FROM debian\nCOPY app /app\n", Some(&directory))).await;
    let sandbox = platform.sandbox_of(SandboxSpec { template: built.id, ..spec() }).await;
    let shown = sandbox.sh("cd /app; ls; readlink a b up out").await;
    assert_eq!(shown.ok(), "a\nb\nf\nout\nup\nb\na\n..\n/etc/shadow\n");
    // Named themselves, they lead nowhere, and not out of the context.
    for name in ["app/a", "app/out", "app/socket"] {
        let text = format!("FROM debian\nCOPY {name} /x\n");
        let error = try_build(&platform, dockerfile(&text, Some(&directory))).await.0.unwrap_err();
        assert_eq!(error.place, Some(("e2b.Dockerfile".to_owned(), 2)), "{name}: {error}");
    }
    platform.finish().await;
}

/// Two names that are not UTF-8 look the same as text, and so does the link beside them.
#[tokio::test(flavor = "multi_thread")]
async fn a_layer_holds_no_file_of_the_host_whatever_its_names_are() {
    let platform = Platform::start(BINARY).await;
    let host = tempfile::tempdir().unwrap();
    std::fs::write(host.path().join("secret"), "the host's").unwrap();
    let text = format!(
        r#"FROM debian
RUN mkdir -p "/a/$(printf '\377')" /z && echo ours > "/a/$(printf '\377')/secret" \
 && ln -s {host} "/a/$(printf '\357\277\275')" && ln "/a/$(printf '\377')/secret" /z/x
RUN rm "/a/$(printf '\377')/secret"
RUN head -c 0 /dev/null > /sparse && truncate -s 1T /sparse
"#,
        host = host.path().display()
    );
    let (built, _) = build(&platform, dockerfile(&text, None)).await;
    assert!(built.size.0 < 1 << 20, "{:?}", built.size);
    let sandbox = platform.sandbox_of(SandboxSpec { template: built.id, ..spec() }).await;
    assert_eq!(sandbox.sh("cat /z/x; ls /a | wc -l; stat -c %s /sparse").await.ok(), "ours\n2\n1099511627776\n");
    let left: Vec<_> = std::fs::read_dir(host.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["secret"]);

    let deep = "FROM debian\nRUN python3 -c \"import os; [(os.mkdir('d'), os.chdir('d')) for _ in range(5000)]\"";
    let error = try_build(&platform, dockerfile(deep, None)).await.0.unwrap_err();
    assert_eq!(error.failure, BuildFailure::Step, "{error}");
    assert!(error.message.contains("nested"), "{error}");
    platform.finish().await;
}

/// A link in the place of an archive means a file of the context, wherever it points.
#[tokio::test(flavor = "multi_thread")]
async fn an_archive_that_is_a_link_is_read_inside_the_context() {
    let platform = Platform::start(BINARY).await;
    let (_host, hosts) = archive(&[("secret", "the host's")]);
    let (_own, own) = archive(&[("own", "the context's")]);
    let (_keep, directory) = context(&[("f", "1")]);
    let inside = directory.join(hosts.strip_prefix("/").unwrap());
    std::fs::create_dir_all(inside.parent().unwrap()).unwrap();
    std::fs::copy(&own, &inside).unwrap();
    std::os::unix::fs::symlink(&hosts, directory.join("a.tar")).unwrap();
    let (built, _) = build(&platform, dockerfile("FROM debian\nADD a.tar /x/\n", Some(&directory))).await;
    let sandbox = platform.sandbox_of(SandboxSpec { template: built.id, ..spec() }).await;
    assert_eq!(sandbox.sh("ls /x; cat /x/own").await.ok(), "own\nthe context's");
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_may_have_more_layers_than_one_mount_can_name() {
    let platform = Platform::start(BINARY).await;
    let text: String = (0..127).map(|n| format!("RUN echo {n} > /n{n}\n")).collect();
    let (built, _) = build(&platform, dockerfile(&format!("FROM debian\n{text}RUN rm /n1 /n5\n"), None)).await;
    assert_eq!(built.layers.len(), 128);
    let sandbox = platform.sandbox_of(SandboxSpec { template: built.id.clone(), ..spec() }).await;
    assert_eq!(sandbox.sh("cat /n7 /n100 /n126; ls /n1 /n5 2>/dev/null").await.stdout(), "7\n100\n126\n");
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_is_stopped_leaves_nothing_but_good_steps() {
    let platform = Platform::start(BINARY).await;
    let cancel = CancellationToken::new();
    let slow = "FROM debian\nRUN echo good > /good\nRUN echo begun; sleep 1000";
    let (sender, mut receiver) = tokio::sync::mpsc::channel(16);
    let building = NodeApi::build_template(&platform.node, dockerfile(slow, None), sender, cancel.clone());
    let (outcome, ()) = tokio::join!(building, async {
        while let Some(event) = receiver.recv().await {
            if event.message == "begun" {
                cancel.cancel();
            }
        }
    });
    let error = outcome.unwrap_err();
    assert_eq!((error.failure, error.phase), (BuildFailure::Cancelled, BuildPhase::Step(2)), "{error}");

    let mut late = dockerfile(slow, None);
    late.timeout = Duration::from_secs(2);
    let (outcome, events) = try_build(&platform, late).await;
    assert_eq!(outcome.unwrap_err().failure, BuildFailure::TimedOut);
    assert!(messages(&events).contains(&"CACHED".to_owned()));

    let mut bomb = dockerfile("FROM debian\nRUN bomb() { bomb | bomb & }; bomb; sleep 1; echo done", None);
    bomb.limits.pids = 64;
    bomb.timeout = Duration::from_secs(60);
    // Whether the shell survives is its own affair; that nothing is left is ours.
    let _ = try_build(&platform, bomb).await;

    let mut full = dockerfile("FROM debian\nRUN dd if=/dev/zero of=/big bs=1M count=200", None);
    full.limits.disk = Some(isopod_wire::Bytes::mib(32));
    let error = try_build(&platform, full).await.0.unwrap_err();
    assert_eq!(error.failure, BuildFailure::Step, "{error}");

    // What a step leaves running ends with it.
    let text = "FROM debian\nRUN (while :; do date > /ticks; done) & sleep 0.2\nRUN ! pgrep date\nRUN cat /ticks";
    let (left, _) = build(&platform, dockerfile(text, None)).await;
    assert!(platform.node.built_templates().await.iter().any(|kept| kept.template.id == left.id && !kept.in_use));
    assert!(platform.node.list().await.is_empty());
    platform.finish().await;
}

/// The start command is up when the sandbox is handed out, and one that does not come up fails the build.
#[tokio::test(flavor = "multi_thread")]
async fn the_start_command_is_up_when_a_sandbox_is_handed_out() {
    let platform = Platform::start(BINARY).await;
    let mut broken = steps("debian", Vec::new());
    broken.start_cmd = Some("exit 7".to_owned());
    broken.ready_cmd = Some("false".to_owned());
    let error = try_build(&platform, broken).await.0.unwrap_err();
    assert_eq!(error.phase, BuildPhase::Finalize, "{error}");
    assert!(error.message.contains("exit code 7"), "{error}");

    let mut server = steps("debian", vec![run("echo page > index.html")]);
    server.start_cmd = Some("python3 -m http.server 3000".to_owned());
    server.ready_cmd = Some("curl -sf localhost:3000 >/dev/null".to_owned());
    let (built, _) = build(&platform, server.clone()).await;
    let sandbox = platform.sandbox_of(SandboxSpec { template: built.id.clone(), ..spec() }).await;
    assert_eq!(sandbox.sh("curl -s localhost:3000").await.ok(), "page\n");

    server.ready_cmd = None;
    let (other, _) = build(&platform, server).await;
    let other_sandbox = platform.sandbox_of(SandboxSpec { template: other.id.clone(), ..spec() }).await;
    assert_eq!(other_sandbox.sh("curl -s localhost:3000").await.ok(), "page\n");
    for ended in [&sandbox, &other_sandbox] {
        platform.node.kill(&ended.incarnation).await.unwrap();
    }
    for template in [built, other] {
        // With what its sandboxes start from.
        platform.node.remove_template(&template.id).await.unwrap();
    }
    platform.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_is_removed_when_nothing_stands_on_it_and_found_again_after_a_restart() {
    let state = isopod_testkit::StateDir::new(BINARY);
    let node = state.open_node(isopod_node::PoolSize::NONE).await;
    let (one, _) = builds::build_on(&node, dockerfile("FROM debian\nRUN echo 1 > /1\nRUN echo 2 > /2", None)).await;
    let (two, _) = builds::build_on(&node, dockerfile("FROM debian\nRUN echo 1 > /1", None)).await;
    node.close().await;

    let node = state.open_node(isopod_node::PoolSize::NONE).await;
    let ids: Vec<String> = node.built_templates().await.into_iter().map(|kept| kept.template.id).collect();
    assert!(ids.contains(&one.id) && ids.contains(&two.id));
    let incarnation = node.create(SandboxSpec { template: one.id.clone(), ..spec() }).await.unwrap();
    assert!(node.remove_template(&one.id).await.is_err());
    node.kill(&incarnation).await.unwrap();
    node.remove_template(&one.id).await.unwrap();
    assert!(node.remove_template(&one.id).await.is_err());
    let layers = state.path().join("templates");
    assert!(!layers.join(&one.layers[1]).exists());
    assert!(layers.join(&two.layers[0]).exists(), "another template stands on it");
    let incarnation = node.create(SandboxSpec { template: two.id, ..spec() }).await.unwrap();
    node.kill(&incarnation).await.unwrap();
    node.close().await;
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_from_nothing_gets_what_a_sandbox_needs() {
    let platform = Platform::start(BINARY).await;
    let text = "FROM debian AS host\nFROM scratch\nCOPY --from=host /usr/bin/true /bin/\nCOPY <<x /x\ntext\nx\n";
    let (built, events) = build(&platform, dockerfile(text, None)).await;
    assert!(messages(&events).iter().any(|line| line.contains("no shell")), "{events:?}");
    let sandbox = platform.sandbox_of(SandboxSpec { template: built.id, ..spec() }).await;
    assert_eq!(sandbox.guest.read_file("/x").await.unwrap().collect().await.unwrap(), "text\n");
    assert!(sandbox.guest.read_file("/etc/passwd").await.is_ok());
    assert!(sandbox.guest.read_file("/usr/bin/env").await.is_err(), "nothing of the host is seen");
    platform.finish().await;
}
