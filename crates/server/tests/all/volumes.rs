//! Volumes over REST as the SDKs call them, on plain directories.

use crate::support;

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

use http::Method;
use isopod_files::workspace::Workspace;
use isopod_wire::FeatureGrants;
use serde_json::{Value, json};

use support::{Answer, Client, Server};

struct Stage {
    server: Server,
    root: tempfile::TempDir,
    id: String,
    token: String,
}

impl Stage {
    async fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().to_owned();
        let server = Server::start_with(move |config| {
            config.control.workspace = Some(Workspace::new(&path));
            let both = |name: &str| (name.to_owned(), vec!["fuse".to_owned(), "userns".to_owned()]);
            let everybody = FeatureGrants::parse(&BTreeMap::from([both("*")])).unwrap();
            config.control.features = everybody.with_templates(&BTreeMap::from([both("code-interpreter-v1")])).unwrap();
        })
        .await;
        let made = server.client.post("/volumes", json!({ "name": "data" })).await;
        assert_eq!(made.status, 201, "{made:?}");
        let text = |name: &str| made.json[name].as_str().unwrap().to_owned();
        Self { id: text("volumeID"), token: text("token"), server, root }
    }

    fn host(&self, path: &str) -> PathBuf {
        self.root.path().join("volumes").join(&self.id).join(path)
    }

    async fn call(&self, method: Method, rest: &str, body: &'static str) -> Answer {
        let bearer = format!("Bearer {}", self.token);
        let kind = if method == Method::PATCH { "application/json" } else { "application/octet-stream" };
        let headers = [("authorization", bearer.as_str()), ("content-type", kind)];
        self.client().raw(method, &format!("/volumecontent/{}/{rest}", self.id), &headers, body.into()).await
    }

    fn client(&self) -> &Client {
        &self.server.client
    }
}

#[tokio::test]
async fn a_volume_is_found_by_its_team_only_and_goes_with_its_files() {
    let stage = Stage::new().await;
    let client = stage.client();
    assert_eq!(client.post("/volumes", json!({ "name": "data" })).await.status, 409);
    for bad in [json!({}), json!({ "name": "" }), json!({ "name": "a/b" }), json!({ "y": 1 })] {
        assert_eq!(client.post("/volumes", bad.clone()).await.status, 400, "{bad}");
    }
    let path = format!("/volumes/{}", stage.id);
    assert_eq!(client.get(&path).await.json["token"], json!(stage.token));
    assert_eq!(client.get("/volumes").await.json, json!([{ "volumeID": stage.id, "name": "data" }]));
    let other = stage.server.other_team().await;
    assert_eq!((other.get(&path).await.status, other.delete(&path).await.status), (404, 404));
    assert_eq!(other.get("/volumes").await.json, json!([]));
    stage.call(Method::PUT, "file?path=/a", "x").await;
    assert_eq!(client.delete(&path).await.status, 204);
    assert!(!stage.host("").exists());
    assert_eq!(client.delete(&path).await.status, 404);
    assert_eq!(stage.call(Method::GET, "file?path=/a", "").await.status, 401);
}

#[tokio::test]
async fn contents_are_opened_by_the_token_of_the_volume_and_nothing_else() {
    let stage = Stage::new().await;
    stage.call(Method::PUT, "file?path=/a", "x").await;
    let file = format!("/volumecontent/{}/file?path=/a", stage.id);
    let second = stage.client().post("/volumes", json!({ "name": "other" })).await.json;
    let wrong = format!("Bearer {}", second["token"].as_str().unwrap());
    let key = format!("Bearer {}", stage.client().key);
    for headers in [vec![], vec![("authorization", wrong.as_str())], vec![("authorization", key.as_str())]] {
        assert_eq!(stage.client().raw(Method::GET, &file, &headers, "".into()).await.status, 401, "{headers:?}");
    }
}

#[tokio::test]
async fn files_and_directories_are_made_told_changed_and_removed() {
    let stage = Stage::new().await;
    let call = |method, rest: &'static str, body| stage.call(method, rest, body);
    assert_eq!(call(Method::PUT, "file?path=/a/b/c.txt", "x").await.status, 404);
    let written = call(Method::PUT, "file?path=/a/b/c.txt&force=true&mode=384&uid=1000&gid=1000", "hello").await;
    assert_eq!(written.status, 201, "{written:?}");
    let told = &written.json;
    assert_eq!((&told["name"], &told["type"], &told["path"]), (&json!("c.txt"), &json!("file"), &json!("/a/b/c.txt")));
    assert_eq!((&told["size"], &told["mode"], &told["uid"]), (&json!(5), &json!(0o600), &json!(1000)));
    assert_eq!(std::fs::metadata(stage.host("a/b/c.txt")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(call(Method::GET, "file?path=a/b/c.txt", "").await.text, "hello");
    assert_eq!(call(Method::PUT, "file?path=/a/b/c.txt", "again").await.status, 201);
    assert_eq!(call(Method::GET, "file?path=/a/b", "").await.status, 400);

    assert_eq!(call(Method::POST, "dir?path=/x/y", "").await.status, 404);
    assert_eq!(call(Method::POST, "dir?path=/x/y&force=true", "").await.status, 201);
    assert_eq!(call(Method::POST, "dir?path=/x/y", "").await.status, 409);
    let names = |answer: &Answer| -> Vec<Value> {
        answer.json.as_array().unwrap().iter().map(|entry| entry["path"].clone()).collect()
    };
    assert_eq!(names(&call(Method::GET, "dir?path=/", "").await), ["/a", "/x"]);
    assert_eq!(names(&call(Method::GET, "dir?path=/&depth=2", "").await), ["/a", "/a/b", "/x", "/x/y"]);
    assert_eq!(call(Method::GET, "dir?path=/nothing", "").await.status, 404);

    let changed = call(Method::PATCH, "path?path=/a/b/c.txt", r#"{"mode":420,"uid":7}"#).await;
    assert_eq!((changed.status, &changed.json["mode"], &changed.json["uid"]), (200, &json!(0o644), &json!(7)));
    assert_eq!(call(Method::PATCH, "path?path=/a/b/c.txt", r#"{"mode":2541}"#).await.status, 400);
    assert_eq!(call(Method::DELETE, "path?path=/a", "").await.status, 204);
    assert_eq!(call(Method::DELETE, "path?path=/a", "").await.status, 404);
    assert_eq!(call(Method::GET, "path?path=/a", "").await.status, 404);
    assert_eq!(call(Method::DELETE, "path?path=/", "").await.status, 400);
    for bad in ["path", "path?path=/../x", "dir?path=/&depth=0", "file?path=/x&y=1"] {
        assert_eq!(call(Method::GET, bad, "").await.status, 400, "{bad}");
    }
}

#[tokio::test]
async fn links_in_a_volume_end_in_the_volume() {
    let stage = Stage::new().await;
    stage.call(Method::PUT, "file?path=/real", "inside").await;
    symlink("/real", stage.host("absolute")).unwrap();
    symlink("../../../../../../../../etc/hostname", stage.host("up")).unwrap();
    symlink("/etc", stage.host("etc")).unwrap();
    assert_eq!(stage.call(Method::GET, "file?path=/absolute", "").await.text, "inside");
    for path in ["up", "etc/hostname"] {
        assert_eq!(stage.call(Method::GET, &format!("file?path={path}"), "").await.status, 404, "{path}");
    }
    assert_ne!(stage.call(Method::PUT, "file?path=etc/isopod-escaped", "x").await.status, 201);
    let told = stage.call(Method::GET, "path?path=etc", "").await.json;
    assert_eq!((&told["type"], &told["target"]), (&json!("symlink"), &json!("/etc")));
    assert_eq!(stage.call(Method::DELETE, "path?path=etc", "").await.status, 204);
    assert!(std::path::Path::new("/etc/hostname").exists());
}

#[tokio::test]
async fn a_sandbox_gets_volumes_by_name_and_shows_them() {
    let stage = Stage::new().await;
    let with =
        |name: &str, path: &str| json!({ "templateID": "base", "volumeMounts": [{ "name": name, "path": path }] });
    for (name, path) in [("nothing", "/mnt"), ("data", "mnt"), ("data", "/"), ("data", "/proc/x"), ("data", "/a/../b")]
    {
        assert_eq!(stage.client().post("/v2/sandboxes", with(name, path)).await.status, 400, "{name} {path}");
    }
    let other = stage.server.other_team().await;
    assert_eq!(other.post("/v2/sandboxes", with("data", "/mnt")).await.status, 400);
    // Root could put a file system of its own in the volume's way.
    let mut fuse = with("data", "/mnt");
    fuse["metadata"] = json!({ "isopod.allow": "fuse" });
    let refused = stage.client().post("/v2/sandboxes", fuse).await;
    assert_eq!(refused.status, 400);
    assert!(refused.json["message"].as_str().unwrap().contains("cannot have volumes"), "{}", refused.json);
    // Those that the operator gives a template are not in the way.
    let mut listed = with("data", "/mnt");
    listed["templateID"] = json!("code-interpreter-v1");
    let features = stage.server.node.spec_of(&stage.server.create(listed).await).unwrap().features;
    assert_eq!((features.userns, features.fuse), (true, false));
    let mounts = json!([{ "name": "data", "path": "/mnt/data" }]);
    let id = stage.server.create(json!({ "volumeMounts": mounts })).await;
    let spec = stage.server.node.spec_of(&id).unwrap();
    assert_eq!(
        (spec.mounts[0].path.as_str(), &spec.mounts[0].subtree),
        ("/mnt/data", &format!("volumes/{}", stage.id))
    );
    assert_eq!(stage.client().get(&format!("/sandboxes/{id}")).await.json["volumeMounts"], mounts);
    assert_eq!(stage.client().get("/v2/sandboxes").await.json[0]["volumeMounts"], mounts);
    let Stage { server, .. } = stage;
    let server = server.start_again().await;
    assert_eq!(server.client.get(&format!("/sandboxes/{id}")).await.json["volumeMounts"], mounts);
}
