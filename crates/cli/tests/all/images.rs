//! Images from a real registry on loopback: pulled, verified, unpacked, built on, and kept in the local store.

use crate::builds;

use isopod_client::guest::{Guest, StartProcess};
use isopod_image::{Reference, Store};
use isopod_node::{Node, PoolSize, RegistrySettings, StateRoot};
use isopod_testkit::{StateDir, spec};
use isopod_wire::build::{BuildFailure, BuildFrom, BuildSpec, BuiltTemplate, RegistryAuth};
use isopod_wire::node::{NodeApi, SandboxSpec, Secret};
use serde_json::json;

use builds::registry::{Registry, layer, small_system};
use builds::web::Web;
use builds::{build_on, dockerfile, run, steps, steps_from, try_build_on};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

async fn open(state: &StateDir, mirrors: &[String]) -> Node {
    let root = StateRoot::open(state.path()).unwrap();
    let mirrors = mirrors.iter().map(|text| text.parse().unwrap()).collect();
    let mut config = state.node_config(PoolSize::NONE);
    config.registries = RegistrySettings { mirrors, ..RegistrySettings::default() };
    Node::open(root, config).await.unwrap()
}

async fn shown(node: &Node, template: &BuiltTemplate, line: &str) -> String {
    let spec = SandboxSpec { template: template.id.clone(), ..spec() };
    let incarnation = node.create(spec).await.unwrap();
    let guest = Guest::over_unix(node.guest_socket(&incarnation).unwrap());
    let output = guest.run(StartProcess::shell(line)).await.unwrap();
    node.kill(&incarnation).await.unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_had_is_told_with_its_reason() {
    let state = StateDir::new(BINARY);
    let registry = Registry::start(None);
    registry.push("team/spoilt", &[small_system("1")], json!({}));
    registry.spoil();
    let own = format!("{0}=http://{0}", registry.address);
    let node = open(&state, &[own, "dead.example=http://127.0.0.1:9".to_owned()]).await;
    let unnamed = Registry::start(None);
    for (image, words) in [
        (format!("{}/team/missing", registry.address), "has no"),
        (format!("{}/team/spoilt", registry.address), "digest mismatch: expected"),
        ("dead.example/x".to_owned(), "cannot be reached"),
        (format!("{}/x", unnamed.address), "an internal address"),
        ("UPPER/x".to_owned(), "is not an image reference"),
    ] {
        let error = try_build_on(&node, steps(&image, Vec::new())).await.0.unwrap_err();
        assert!(error.message.contains(words), "{image}: {error}");
        assert!(matches!(error.failure, BuildFailure::Image | BuildFailure::Invalid), "{image}: {error:?}");
    }
    assert!(node.built_templates().await.is_empty());
    node.close().await;
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_of_a_registry_is_built_on_and_shows_nothing_of_the_host() {
    let state = StateDir::new(BINARY);
    let registry = Registry::start(None);
    let second = layer(&[("dir/.wh.gone", ""), ("dir/new", "new"), ("home/node/x", "x")]);
    let config = json!({ "Env": ["COLOUR=red", "PATH=/bin:/usr/bin"], "WorkingDir": "/dir" });
    registry.push("library/tiny", &[small_system("registry"), second], config);
    let mirror = format!("docker.io=http://{}", registry.address);
    let node = open(&state, &[mirror]).await;

    let text = "FROM tiny\nRUN ls > /list; echo $COLOUR >> /list; id -un >> /list\nUSER node\nRUN touch /tmp/mine\n";
    let (built, _) = build_on(&node, dockerfile(text, None)).await;
    assert_eq!((built.user.as_str(), built.workdir.as_str()), ("node", "/home/user"));
    let line = "cat /list /etc/marker; ls -l /tmp/mine; ls /usr/lib/python3 2>&1; sudo id -un; ls /home";
    let text = shown(&node, &built, line).await;
    assert!(text.starts_with("new\nred\nroot\nregistry"), "{text}");
    assert!(text.contains("node") && text.contains("No such file"), "{text}");

    // The SDK's steps run as `user`, who is made where an image has none, also when 1000 is taken.
    let (built, _) = build_on(&node, steps("tiny", vec![run("id > /home/user/who")])).await;
    let text = shown(&node, &built, "cat /home/user/who; id -u; sudo id -u").await;
    assert!(text.starts_with("uid=1001(user)"), "{text}");
    assert!(text.ends_with("1001\n0\n"), "{text}");

    // From now on the store has it, and the registry is not needed.
    drop(registry);
    let (again, _) = build_on(&node, steps("tiny", vec![run("id > /home/user/who")])).await;
    assert_eq!(again.id, built.id);
    node.close().await;
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_registry_wants_the_right_password() {
    let state = StateDir::new(BINARY);
    let registry = Registry::start(Some(("robot", "right")));
    registry.push("team/private", &[small_system("secret")], json!({}));
    let node = open(&state, &[format!("{0}=http://{0}", registry.address)]).await;
    let from = |password: Option<&str>| BuildFrom::Image {
        reference: format!("{}/team/private", registry.address),
        auth: password.map(|password| RegistryAuth::Basic {
            username: "robot".to_owned(),
            password: Secret(password.to_owned()),
        }),
    };
    for wrong in [None, Some("wrong")] {
        let error = try_build_on(&node, steps_from(from(wrong), Vec::new())).await.0.unwrap_err();
        assert!(error.message.contains("refuses"), "{error}");
    }
    let (built, events) = build_on(&node, steps_from(from(Some("right")), Vec::new())).await;
    assert!(shown(&node, &built, "cat /etc/marker").await.contains("secret"));
    assert!(!format!("{events:?}").contains("right"), "the password is nowhere told");
    node.close().await;
    state.assert_nothing_left();
}

/// What opens a registry belongs to a team, and so does what came out: no name, no digest and no registry of their own
/// gives it to another team.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_one_teams_credentials_opened_is_not_given_to_another() {
    let state = StateDir::new(BINARY);
    let registry = Registry::start(Some(("robot", "right")));
    registry.push("team/private", &[small_system("secret")], json!({}));
    let name = format!("{}/team/private", registry.address);
    let owner = Store::open(&state.path().join("images")).unwrap();
    let known = owner.clone();
    // It knows every digest of the private image, and has none of its layers.
    let hostile = Web::start(move |request| {
        let path = request.split(' ').nth(1).unwrap_or_default();
        let Some(store) = known.find_private("red") else { return (404, Vec::new()) };
        let image = store.find(&named(&store.list().unwrap()[0].reference)).unwrap();
        let wanted = match path.rsplit_once('/') {
            Some((head, _)) if head.ends_with("/manifests") => image.manifest_digest,
            Some((_, digest)) if digest == image.manifest.config.digest.as_str() => image.manifest.config.digest,
            _ => return (404, Vec::new()),
        };
        (200, std::fs::read(store.blob(&wanted).unwrap()).unwrap())
    });
    let mirrors = [&registry.address, &hostile.address].map(|place| format!("{place}=http://{place}"));
    let node = open(&state, &mirrors).await;
    let spec = |team: &str, reference: &str, password: Option<&str>| {
        let auth = password.map(|password| RegistryAuth::Basic {
            username: "robot".to_owned(),
            password: Secret(password.to_owned()),
        });
        let from = BuildFrom::Image { reference: reference.to_owned(), auth };
        BuildSpec { cache_scope: Some(team.to_owned()), ..steps_from(from, Vec::new()) }
    };
    let (built, _) = build_on(&node, spec("red", &name, Some("right"))).await;
    assert!(shown(&node, &built, "cat /etc/marker").await.contains("secret"));

    let digest = owner.find_private("red").unwrap().list().unwrap()[0].manifest.clone();
    let stolen = format!("{}/any/name", hostile.address);
    for (reference, password, words) in [
        (name.clone(), None, "refuses"),
        (name.clone(), Some("wrong"), "refuses"),
        (format!("{name}@{digest}"), None, "refuses"),
        (stolen.clone(), None, "has no"),
        (stolen, Some("any"), "has no"),
    ] {
        let error = try_build_on(&node, spec("blue", &reference, password)).await.0.unwrap_err();
        assert!(error.message.contains(words), "{reference}: {error}");
    }

    // The team itself has it from the store, also without the registry.
    drop(registry);
    let (again, _) = build_on(&node, spec("red", &name, None)).await;
    assert_eq!(again.id, built.id);
    node.close().await;

    let isopod = |arguments: &[&str]| {
        let output = state.isopod().command(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(isopod(&["image", "ls", "--json"]).contains(r#""team": "red""#));
    isopod(&["image", "rm", &name]);
    assert!(isopod(&["image", "gc"]).starts_with("removed "));
    assert_eq!(isopod(&["image", "ls", "--json"]).trim(), "[]");
    state.assert_nothing_left();
}

fn named(text: &str) -> Reference {
    text.parse().unwrap()
}

/// The SDK's third kind of registry. The keys are exchanged for a password by a signed request.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_aws_open_a_registry() {
    const REGISTRY: &str = "123456789012.dkr.ecr.eu-west-1.amazonaws.com";
    let state = StateDir::new(BINARY);
    let registry = Registry::start(Some(("AWS", "a:password")));
    registry.push("team/private", &[small_system("aws")], json!({}));
    let service = Web::start(|request| {
        let is_signed = request.contains("Credential=AKIDRIGHT/") && request.contains("/eu-west-1/ecr/aws4_request");
        let is_call = request.contains("GetAuthorizationToken") && request.ends_with("\r\n\r\n{}");
        match is_signed && is_call {
            // AWS:a:password
            true => (200, br#"{"authorizationData":[{"authorizationToken":"QVdTOmE6cGFzc3dvcmQ="}]}"#.to_vec()),
            false => (400, br#"{"__type":"UnrecognizedClientException"}"#.to_vec()),
        }
    });
    let mirrors = [
        format!("{REGISTRY}=http://{}", registry.address),
        format!("api.ecr.eu-west-1.amazonaws.com=http://{}", service.address),
    ];
    let node = open(&state, &mirrors).await;
    let from = |key: &str, region: &str| BuildFrom::Image {
        reference: format!("{REGISTRY}/team/private"),
        auth: Some(RegistryAuth::Aws {
            access_key_id: key.to_owned(),
            secret_access_key: Secret("hush-hush".to_owned()),
            region: region.to_owned(),
        }),
    };
    let wrong_region = "\"evil.example/\" is not a valid AWS region";
    for (key, region, words) in [("AKIDWRONG", "eu-west-1", "refuses"), ("AKIDRIGHT", "evil.example/", wrong_region)] {
        let error = try_build_on(&node, steps_from(from(key, region), Vec::new())).await.0.unwrap_err();
        assert!(error.message.contains(words), "{error}");
    }
    let (built, events) = build_on(&node, steps_from(from("AKIDRIGHT", "eu-west-1"), Vec::new())).await;
    assert!(shown(&node, &built, "cat /etc/marker").await.contains("aws"));
    let told = format!("{events:?}{:?}", service.requests.lock().unwrap());
    assert!(!told.contains("hush-hush"), "the key itself goes nowhere");
    node.close().await;
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_from_the_web_is_added_checked_and_cached_by_its_content() {
    let state = StateDir::new(BINARY);
    let content = std::sync::Arc::new(std::sync::Mutex::new("first"));
    let served = std::sync::Arc::clone(&content);
    let web = Web::start(move |request| match request.starts_with("GET /pub/tool.txt ") {
        true => (200, served.lock().unwrap().as_bytes().to_vec()),
        false => (404, Vec::new()),
    });
    let registry = Registry::start(None);
    registry.push("library/tiny", &[small_system("x")], json!({}));
    let mirrors = [("files.example", &web.address), ("docker.io", &registry.address)];
    let node = open(&state, &mirrors.map(|(name, place)| format!("{name}=http://{place}"))).await;
    let from = "FROM tiny\nADD --chmod=0644 https://files.example/pub/tool.txt /opt/\n";
    let text = format!("{from}ADD https://files.example/pub/tool.txt /secret\nRUN touch /after");
    let (built, _) = build_on(&node, dockerfile(&text, None)).await;
    let text_shown = shown(&node, &built, "cat /opt/tool.txt; ls -ln /opt/tool.txt /secret").await;
    let lines: Vec<&str> = text_shown.lines().collect();
    assert!(lines[0].starts_with("first-rw-r--r-- 1 0 0 ") && lines[1].starts_with("-rw------- 1 0 0 "), "{lines:?}");
    // It is looked at again, and what it gave is used when it is the same.
    let (again, _) = build_on(&node, dockerfile(&text, None)).await;
    assert_eq!(again.id, built.id);
    *content.lock().unwrap() = "other";
    let (changed, _) = build_on(&node, dockerfile(&text, None)).await;
    assert_ne!(changed.id, built.id);

    let before = web.count();
    let sum = isopod_image::Digest::of(b"other");
    let checked = format!("FROM tiny\nADD --checksum={sum} https://files.example/pub/tool.txt /x\n");
    build_on(&node, dockerfile(&checked, None)).await;
    assert_eq!(web.count(), before, "what is known by its hash is not fetched again");
    for (team, requests) in [("a", 1), ("a", 0), ("b", 1)] {
        let before = web.count();
        let spec = BuildSpec { cache_scope: Some(team.to_owned()), ..dockerfile(&checked, None) };
        build_on(&node, spec).await;
        assert_eq!(web.count() - before, requests, "a hash is no secret: team {team} must be able to fetch it itself");
    }
    let wrong = isopod_image::Digest::of(b"never");
    for (text, words) in [
        (
            format!("FROM tiny\nADD --checksum={wrong} https://files.example/pub/tool.txt /x"),
            "digest mismatch: expected",
        ),
        ("FROM tiny\nADD https://files.example/pub/none /x".to_owned(), "404"),
        ("FROM tiny\nADD https://files.example/ /x/".to_owned(), "has no file name"),
        (format!("FROM tiny\nADD http://{}/pub/tool.txt /x", web.address), "an internal address"),
    ] {
        let error = try_build_on(&node, dockerfile(&text, None)).await.0.unwrap_err();
        assert!(error.message.contains(words), "{text}: {error}");
        assert_eq!(error.place, Some(("e2b.Dockerfile".to_owned(), 2)));
    }
    node.close().await;
    state.assert_nothing_left();
}

#[test]
fn images_are_pulled_listed_exported_imported_and_collected_by_the_command() {
    let state = StateDir::new(BINARY);
    let registry = Registry::start(None);
    registry.push("team/tiny", &[small_system("x")], json!({}));
    let name = format!("{}/team/tiny:latest", registry.address);
    let isopod = |arguments: &[&str]| {
        let mut command = state.isopod().command(arguments);
        let output =
            command.env("ISOPOD_REGISTRY_MIRRORS", format!("{0}=http://{0}", registry.address)).output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.success(), text)
    };
    assert!(!isopod(&["image", "pull", &format!("{}/none", registry.address)]).0);
    assert!(!isopod(&["image", "export", "none", "/dev/null"]).0);
    let (pulled, text) = isopod(&["image", "pull", &name]);
    assert!(pulled, "{text}");
    assert!(isopod(&["image", "ls"]).1.contains(&name));
    let archive = state.path().join("tiny.tar");
    let archive = archive.to_str().unwrap();
    assert_eq!(isopod(&["image", "export", &name, archive]), (true, String::new()));
    assert!(isopod(&["image", "rm", &name]).0);
    let (collected, text) = isopod(&["image", "gc"]);
    assert!(collected && text.contains("removed 3 blobs"), "{text}");
    assert!(!isopod(&["image", "ls"]).1.contains(&name));
    assert_eq!(isopod(&["image", "import", archive]), (true, format!("{name}\n")));
    assert_eq!(
        isopod(&["image", "import", archive, "--name", "mine"]),
        (true, "docker.io/library/mine:latest\n".to_owned())
    );
    assert!(isopod(&["image", "ls", "--json"]).1.contains("library/mine"));
    std::fs::write(archive, "no archive").unwrap();
    assert!(!isopod(&["image", "import", archive]).0);
    assert!(
        !state
            .path()
            .read_dir()
            .unwrap()
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().starts_with("import-"))
    );
}
