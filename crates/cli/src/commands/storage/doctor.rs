//! `isopod storage doctor`: one line for each thing that must be right, and a word of advice for each that is not.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use isopod_storage::{
    Content, DirectoryStore, FailureKind, ObjectStore, Prefixed, S3Settings, S3Store, StoreError, StoreSettings,
};

use super::{Choice, Verb, advice};
use crate::args::DoctorArgs;

pub(super) fn run(verb: &Verb<'_>, args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let choice = verb.choice(&args.tunables)?;
    say!("store    {}", choice.settings.store.describe());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("could not start")?;
    let findings = [device(), runtime.block_on(bucket(&choice)), path(verb, &choice)];
    let is_good = findings.iter().all(|finding| *finding);
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn good(what: &str, how: &str) -> bool {
    say!("ok       {what}: {how}");
    true
}

fn bad(what: &str, why: &str, hint: &str) -> bool {
    say!("FAILED   {what}: {why}");
    say!("         hint: {hint}");
    false
}

fn device() -> bool {
    match std::fs::File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => good("device", "/dev/fuse can be opened"),
        Err(error) => bad("device", &format!("/dev/fuse: {error}"), "load the kernel module fuse"),
    }
}

async fn bucket(choice: &Choice) -> bool {
    match try_bucket(&choice.settings.store).await {
        Ok(()) => good("bucket", "an object was written, read and deleted"),
        Err(error) => {
            let kind = FailureKind::from(&error);
            let name = match kind {
                FailureKind::NoBucket => "bucket missing",
                FailureKind::Denied => "bad keys",
                FailureKind::WrongRegion => "wrong region",
                FailureKind::Unreachable => "unreachable",
                _ => "bucket",
            };
            bad(name, &error.to_string(), advice(kind))
        }
    }
}

async fn try_bucket(settings: &StoreSettings) -> Result<(), StoreError> {
    let store: Arc<dyn ObjectStore> = match settings {
        StoreSettings::Directory(path) => Arc::new(DirectoryStore::open(path)?),
        StoreSettings::S3(bucket) => {
            let mut settings = S3Settings::new(&bucket.bucket, &bucket.region, bucket.keys.clone());
            settings.endpoint.clone_from(&bucket.endpoint);
            let store = Arc::new(S3Store::new(settings)?);
            store.check().await?;
            if bucket.prefix.is_empty() { store } else { Arc::new(Prefixed::new(store, &bucket.prefix)) }
        }
    };
    let key = format!(".isopod-doctor-{}", std::process::id());
    let tag = store.put(&key, Content::Bytes("test".into()), &Default::default()).await?;
    let read = store.get(&key, &tag, 0..4).await;
    store.delete(&key).await?;
    read.map(drop)
}

/// The path on the host must be the workspace, or nothing yet.
fn path(verb: &Verb<'_>, choice: &Choice) -> bool {
    let path = Path::new(&choice.base_path);
    let mounted = verb.running().status().is_ok_and(|status| {
        status.mounts.iter().any(|mount| mount.path.as_deref() == Some(path) && mount.subtree.is_none())
    });
    if mounted {
        return good("path", &format!("{} is the workspace", choice.base_path));
    }
    match std::fs::read_dir(path).map(Iterator::count) {
        Ok(0) => good("path", &format!("{} is free", choice.base_path)),
        Ok(_) => bad(
            "path mismatch",
            &format!("{} holds files that are not of the workspace", choice.base_path),
            "agents on the host would write where no sandbox looks: move them away, or set STORAGE_BASE_PATH",
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            good("path", &format!("{} can be made", choice.base_path))
        }
        Err(error) => bad("path", &format!("{}: {error}", choice.base_path), "isopod storage mount mounts it anew"),
    }
}
