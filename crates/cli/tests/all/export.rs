//! Templates as images: what skopeo and umoci read is what sandboxes show.

use crate::builds;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use isopod_client::guest::{Guest, StartProcess};
use isopod_node::{Node, PoolSize, RegistrySettings, StateRoot};
use isopod_testkit::{Finished, StateDir, spec};
use isopod_wire::build::{BuildFrom, BuildSpec, BuiltTemplate, ExportError, ExportSpec};
use isopod_wire::node::{NodeApi, SandboxSpec};
use serde_json::{Value, json};

use builds::registry::{Registry, layer, small_system};
use builds::{build_on, dockerfile, run, steps, steps_from};

const BINARY: &str = env!("CARGO_BIN_EXE_isopod");

/// Everything that an archive can express: files removed, replaced and moved, links, owners, modes and odd names.
const DOCKERFILE: &str = r#"
FROM tiny
LABEL maker=tests
RUN rm /dir/gone && touch /dir/new && mkdir -p /srv/tree/deep && echo low > /srv/tree/deep/low && touch /srv/tree/other
RUN rm -r /srv/tree && mkdir /srv/tree && echo high > /srv/tree/high
RUN mv /dir /moved && ln -s /moved /dir && ln /etc/marker /etc/again && mkfifo -m 640 /srv/pipe
RUN echo tool > /srv/tool && chown 1000:50 /srv/tool && chmod 6755 /srv/tool && echo key > /srv/secret
RUN rm /srv/secret && touch "/srv/$(cat /etc/marker) with spaces" && chmod 1777 /srv
ENV COLOUR=blue
USER node
WORKDIR /srv
EXPOSE 8080
ENTRYPOINT ["/bin/sh", "-c"]
CMD ["echo $COLOUR; id -u; ls /moved"]
"#;

/// One line for each file: type, mode, owner, size, links, path and target. Then the contents.
const LIST: &str = r#"export LC_ALL=C
cd "$1"
find . -xdev \( -path ./dev -o -path ./proc -o -path ./sys -o -path ./run -o -path ./tmp -o -path ./etc/isopod \
    -o -path ./etc/resolv.conf \) -prune -o \( -type d -printf '%y %m %U:%G %p\n' -o -printf '%y %m %U:%G %s %n %p %l\n' \) | sort
find . -xdev \( -path ./dev -o -path ./proc -o -path ./sys -o -path ./run -o -path ./tmp -o -path ./etc/isopod \
    -o -path ./etc/resolv.conf \) -prune -o -type f -print0 | sort -z | xargs -0 sha256sum
"#;

async fn open(state: &StateDir, registry: &Registry) -> Node {
    let root = StateRoot::open(state.path()).unwrap();
    let mut config = state.node_config(PoolSize::NONE);
    let mirror = format!("docker.io=http://{}", registry.address).parse().unwrap();
    config.registries = RegistrySettings { mirrors: vec![mirror], ..RegistrySettings::default() };
    Node::open(root, config).await.unwrap()
}

fn push_tiny(registry: &Registry) {
    let second = layer(&[("dir/.wh.nothing", ""), ("dir/kept", "kept")]);
    let config = json!({ "Env": ["PATH=/bin:/usr/bin"], "Cmd": ["/bin/sh"], "ExposedPorts": { "80/tcp": {} } });
    registry.push("library/tiny", &[small_system("registry"), second], config);
}

async fn shown(node: &Node, template: &BuiltTemplate, line: &str) -> String {
    let spec = SandboxSpec { template: template.id.clone(), ..spec() };
    let incarnation = node.create(spec).await.unwrap();
    let guest = Guest::over_unix(node.guest_socket(&incarnation).unwrap());
    let start = StartProcess::new("/bin/sh").args(["-c", line, "sh", "/"]).user("root");
    let output = guest.run(start).await.unwrap();
    node.kill(&incarnation).await.unwrap();
    assert_eq!(output.ended.exit_code, 0, "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

async fn export(node: &Node, template: &BuiltTemplate, name: &str, squash: bool) -> Vec<u8> {
    let spec = ExportSpec { template: template.id.clone(), name: name.to_owned(), squash };
    let mut image = node.export_template(spec).await.unwrap();
    let mut bytes = Vec::new();
    image.file.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, image.size);
    bytes
}

pub(crate) fn run_program(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    Finished::from(output.unwrap_or_else(|error| panic!("{program}: {error}; see cargo xtask setup"))).ok()
}

/// The root file system of an archive, unpacked by umoci, and the configuration that umoci makes for a runtime.
pub(crate) fn unpacked(archive: &Path, directory: &Path) -> (PathBuf, Value) {
    std::fs::create_dir(directory).unwrap();
    let (archive, layout) = (archive.display(), directory.join("layout"));
    let bundle = directory.join("bundle");
    let image = format!("{}:image", layout.display());
    run_program(
        "skopeo",
        &["--insecure-policy", "copy", "-q", &format!("oci-archive:{archive}"), &format!("oci:{image}")],
    );
    run_program("umoci", &["unpack", "--image", &image, bundle.to_str().unwrap()]);
    let config = std::fs::read(bundle.join("config.json")).unwrap();
    (bundle.join("rootfs"), serde_json::from_slice(&config).unwrap())
}

/// The lines that differ, so that a failure is readable.
fn assert_same(ours: &str, theirs: &str) {
    let (ours, theirs): (Vec<&str>, Vec<&str>) = (ours.lines().collect(), theirs.lines().collect());
    let only = |these: &[&str], those: &[&str]| -> Vec<String> {
        these.iter().filter(|line| !those.contains(line)).map(ToString::to_string).collect()
    };
    assert_eq!((only(&ours, &theirs), only(&theirs, &ours)), (Vec::new(), Vec::new()));
    assert!(ours.len() > 50, "{ours:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_programs_read_an_exported_template_as_its_sandboxes_show_it() {
    let (state, scratch) = (StateDir::new(BINARY), tempfile::tempdir().unwrap());
    let registry = Registry::start(None);
    push_tiny(&registry);
    let node = open(&state, &registry).await;
    let (built, _) = build_on(&node, dockerfile(DOCKERFILE, None)).await;
    let in_sandbox = shown(&node, &built, LIST).await;
    assert!(in_sandbox.contains("./srv/registry with spaces"), "{in_sandbox}");

    let archive = scratch.path().join("layers.tar");
    let bytes = export(&node, &built, "registry.example/web:v1", false).await;
    assert!(bytes == export(&node, &built, "registry.example/web:v1", false).await, "the same template, other bytes");
    std::fs::write(&archive, &bytes).unwrap();
    let source = format!("oci-archive:{}", archive.display());
    let about: Value = serde_json::from_str(&run_program("skopeo", &["inspect", &source])).unwrap();
    assert_eq!(about["Layers"].as_array().unwrap().len(), built.layers.len());
    assert_eq!((&about["Labels"], &about["Architecture"]), (&json!({ "maker": "tests" }), &json!("amd64")));
    let config: Value = serde_json::from_str(&run_program("skopeo", &["inspect", "--config", &source])).unwrap();
    assert_eq!(config["config"]["User"], "node");
    assert_eq!(config["config"]["ExposedPorts"], json!({ "80/tcp": {}, "8080/tcp": {} }));
    assert_eq!(config["config"]["Entrypoint"], json!(["/bin/sh", "-c"]));

    for (name, squash) in [("layers", false), ("squashed", true)] {
        let archive = scratch.path().join(format!("{name}.tar"));
        std::fs::write(&archive, export(&node, &built, "web", squash).await).unwrap();
        let (root, config) = unpacked(&archive, &scratch.path().join(name));
        let on_disk: Finished =
            Command::new("sh").args(["-c", LIST, "sh"]).arg(&root).env("LC_ALL", "C").output().unwrap().into();
        assert_same(&in_sandbox, &on_disk.ok());
        assert_eq!(config["process"]["cwd"], "/srv");
        assert_eq!(config["process"]["user"]["uid"], 1000);
        assert_eq!(config["process"]["args"][2], "echo $COLOUR; id -u; ls /moved");
        // The deleted file is in a layer, but not if there is only one.
        let has_secret = layers_contain(&archive, &scratch.path().join(name), "srv/secret");
        assert_eq!(has_secret, !squash, "{name}");
    }
    node.close().await;
    state.assert_nothing_left();
}

/// Whether a layer of the image, as skopeo copied it, has this file.
fn layers_contain(archive: &Path, directory: &Path, name: &str) -> bool {
    let layout = directory.join("layout/blobs/sha256");
    let blobs = std::fs::read_dir(&layout).unwrap_or_else(|error| panic!("{}: {error}", archive.display()));
    let mut lists = blobs.map(|blob| {
        let output = Command::new("tar").arg("-tzf").arg(blob.unwrap().path()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    });
    lists.any(|list| list.lines().any(|line| line == name))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exported_template_is_imported_and_built_on() {
    let (state, scratch) = (StateDir::new(BINARY), tempfile::tempdir().unwrap());
    let registry = Registry::start(None);
    push_tiny(&registry);
    let node = open(&state, &registry).await;
    let (built, _) = build_on(&node, dockerfile(DOCKERFILE, None)).await;
    let archive = scratch.path().join("web.tar");
    std::fs::write(&archive, export(&node, &built, "web", false).await).unwrap();
    let imported = state.isopod().command(&["image", "import", archive.to_str().unwrap()]).output().unwrap();
    assert_eq!(Finished::from(imported).ok(), "docker.io/library/web:latest\n");
    let (again, _) = build_on(&node, dockerfile("FROM web\nUSER root\nRUN cat tree/high tool > /both", None)).await;
    let said = shown(&node, &again, "cat /both; ls /moved; ls /srv").await;
    assert_eq!(said, "high\ntool\nkept\nnew\npipe\nregistry with spaces\ntool\ntree\n");

    // A registry accepts it, too: a stranger's check of every digest and size.
    let target = format!("docker://{}/pushed/web:1", registry.address);
    let source = format!("oci-archive:{}", archive.display());
    run_program("skopeo", &["--insecure-policy", "copy", "-q", "--dest-tls-verify=false", &source, &target]);
    node.close().await;
    state.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_an_image_is_refused_with_advice() {
    let state = StateDir::new(BINARY);
    let registry = Registry::start(None);
    push_tiny(&registry);
    let node = open(&state, &registry).await;
    let try_export = async |template: &str, name: &str, squash| {
        let spec = ExportSpec { template: template.to_owned(), name: name.to_owned(), squash };
        node.export_template(spec).await
    };
    assert!(matches!(try_export("tpl-1", "web", false).await, Err(ExportError::NotFound(_))));
    assert!(matches!(try_export("../x", "web", false).await, Err(ExportError::NotFound(_))));

    let (on_host, _) = build_on(&node, steps("base", vec![run("touch /home/user/x")])).await;
    let refused = try_export(&on_host.id, "web", false).await.unwrap_err();
    assert!(matches!(refused, ExportError::OnHost) && refused.to_string().contains("FROM debian:12"), "{refused}");

    let of_team = |spec: BuildSpec, team: &str| BuildSpec { cache_scope: Some(team.to_owned()), ..spec };
    let red = of_team(dockerfile("FROM tiny\nRUN touch /srv-red", None), "red");
    let (red, _) = build_on(&node, red).await;
    let refused = try_export(&red.id, "Not A Name", false).await.unwrap_err();
    assert!(matches!(refused, ExportError::Name(_)), "{refused}");
    let derive = |team| of_team(steps_from(BuildFrom::Template(red.id.clone()), vec![run("touch /tmp/mine")]), team);
    let (own, _) = build_on(&node, derive("red")).await;
    assert!(try_export(&own.id, "web", false).await.is_ok());
    let (others, _) = build_on(&node, derive("blue")).await;
    let refused = try_export(&others.id, "web", false).await.unwrap_err();
    assert!(matches!(refused, ExportError::OtherTeamsLayers), "{refused}");
    assert!(try_export(&others.id, "web", true).await.is_ok());

    let (reserved, _) = build_on(&node, dockerfile("FROM tiny\nRUN touch /tmp/.wh.x", None)).await;
    let refused = try_export(&reserved.id, "web", false).await.unwrap_err();
    assert!(matches!(&refused, ExportError::Files(reason) if reason.contains(".wh.")), "{refused}");
    let left = std::fs::read_dir(state.path().join("templates")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains("export")).collect();
    assert!(left.is_empty(), "{left:?}");
    node.close().await;
    state.assert_nothing_left();
}
