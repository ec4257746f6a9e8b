//! Templates, their builds, and the files for them.

use isopod_store::{
    Build, BuildLine, BuildLogQuery, BuildReason, BuildStatus, Direction, Level, Resource, Store, Tag, Template,
    TemplateKind,
};

use crate::values::{at, limits, team, text};

pub(crate) async fn check(store: &Store) {
    check_templates(store).await;
    check_builds(store).await;
    check_build_logs(store).await;
    assert_eq!(store.leftovers().await.unwrap(), ["node-old"]);
    assert_eq!(store.template_files_size(&team()).await.unwrap(), 4_000_000_000);
    assert!(store.touch_template_file(&team(), "hash-of-files").await.unwrap());
}

async fn check_templates(store: &Store) {
    let template = |id: &str, name: &str, public, made, changed| Template {
        id: id.to_owned(),
        team: team(),
        kind: TemplateKind::Built,
        public,
        created_at: at(made),
        updated_at: at(changed),
        names: vec![name.to_owned()],
    };
    let wanted = [template("tpl0web", "web", true, 16, 19), template("tpl0worker", "worker", false, 17, 17)];
    assert_eq!(store.list_templates(&team()).await.unwrap(), wanted);
}

fn build(id: &str, template: &str, status: BuildStatus, tags: &[&str]) -> Build {
    Build {
        id: id.to_owned(),
        template: template.to_owned(),
        status,
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        limits: limits(),
        legacy: None,
        node_template: None,
        size: None,
        memory_size: None,
        reason: None,
        created_at: at(500),
        finished_at: None,
        snapshot: None,
    }
}

async fn check_builds(store: &Store) {
    let ready = Build {
        node_template: text("node-web-1"),
        size: Some(123_456_789_012),
        finished_at: Some(at(19)),
        ..build("build-ready", "tpl0web", BuildStatus::Ready, &["latest", "v1"])
    };
    let failed = Build {
        reason: Some(BuildReason { message: "RUN false: exit 1".to_owned(), step: text("1") }),
        finished_at: Some(at(21)),
        ..build("build-failed", "tpl0web", BuildStatus::Failed, &["v2"])
    };
    let queued = Build {
        legacy: text(r#"{"dockerfile":"FROM base"}"#),
        ..build("build-queued", "tpl0worker", BuildStatus::Queued, &["latest"])
    };
    let building = build("build-building", "tpl0worker", BuildStatus::Building, &["latest"]);
    let requested = build("build-requested", "tpl0worker", BuildStatus::Requested, &[]);
    assert_eq!(store.tagged_build("tpl0web", "stable").await.unwrap(), Some(ready.clone()));
    assert_eq!(store.list_builds("tpl0web").await.unwrap(), [failed, ready]);
    assert_eq!(store.list_builds("tpl0worker").await.unwrap(), [requested, building, queued]);
    let tag =
        |tag: &str, seconds| Tag { tag: tag.to_owned(), build: "build-ready".to_owned(), assigned_at: at(seconds) };
    let mut tags = store.list_tags("tpl0web").await.unwrap();
    tags.sort_by(|left, right| left.tag.cmp(&right.tag));
    assert_eq!(tags, [tag("latest", 19), tag("stable", 20), tag("v1", 19)]);
    store.check_here(Resource::Build("build-ready")).await.unwrap();
}

async fn check_build_logs(store: &Store) {
    let wanted = BuildLogQuery { offset: 0, limit: 10, least: Level::Debug, from: None, direction: Direction::Forward };
    let lines = store.list_build_lines("build-failed", wanted).await.unwrap();
    let line =
        |seconds, level, step, message: &str| BuildLine { at: at(seconds), level, step, message: message.to_owned() };
    let first = line(501, Level::Info, None, "begun");
    assert_eq!(lines, [first, line(502, Level::Error, text("1"), "RUN false: exit 1")]);
}
