//! Fuzz entry point for FUSE requests, over an empty bucket.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Runtime;

use super::device::Device;
use super::session::{Answer, Mount, Request};
use super::wire::{Header, IN_HEADER, MAX_WRITE, Operation, Out};
use crate::attributes::Metadata;
use crate::object::{Content, ListRequest, Listing, ObjectInfo, ObjectStore, StoreError};
use crate::vfs::{ROOT, Settings, Vfs};

/// A sequence of requests: number of the operation, node, length of the body, body.
pub fn fuse_request(data: &[u8]) {
    let scratch = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("no temporary directory");
    runtime().block_on(async {
        let mount = mount(scratch.path());
        let mut rest = data;
        let mut count = 0_u64;
        while let [number, node, length, after @ ..] = rest {
            let (body, next) = after.split_at(after.len().min(usize::from(*length)));
            rest = next;
            count += 1;
            send(&mount, count, u32::from(*number), u64::from(*node), body).await;
        }
    });
}

async fn send(mount: &Mount, unique: u64, number: u32, node: u64, body: &[u8]) {
    let length = IN_HEADER + body.len();
    let out =
        Out::default().u32(length as u32).u32(number).u64(unique).u64(node).u32(1000).u32(1000).u64(0).bytes(body);
    let buffer = out.0;
    let header = Header::parse(&buffer).unwrap_or_else(|_| panic!("a complete header must parse"));
    assert_eq!((header.unique, header.node, header.uid), (unique, node, 1000));
    let Some(operation) = Operation::parse(header.operation) else { return };
    let request = Request { header, operation, buffer, length };
    if let Answer::Done(answer) = mount.answer(&request).await {
        assert!(answer.len() <= MAX_WRITE + 4096, "{operation:?} gave {} bytes", answer.len());
    }
}

fn mount(state: &Path) -> Mount {
    let settings = Settings { deadline: Duration::from_secs(1), ..Settings::new(state) };
    let vfs = Vfs::open(Arc::new(Empty), settings).expect("could not open the file system");
    // Notifications to the kernel go to /dev/null.
    let nowhere = File::options().read(true).write(true).open("/dev/null").expect("could not open /dev/null");
    let device = Device::new(nowhere.into()).expect("could not create a device");
    Mount::new(vfs, Arc::new(device), ROOT, false).expect("could not create a mount")
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| tokio::runtime::Builder::new_current_thread().enable_time().build().expect("no runtime"))
}

/// An empty bucket.
#[derive(Debug)]
struct Empty;

#[async_trait::async_trait]
impl ObjectStore for Empty {
    async fn list(&self, _: &ListRequest) -> Result<Listing, StoreError> {
        Ok(Listing::default())
    }

    async fn head(&self, _: &str) -> Result<Option<ObjectInfo>, StoreError> {
        Ok(None)
    }

    async fn get(&self, key: &str, _: &str, _: Range<u64>) -> Result<Bytes, StoreError> {
        Err(StoreError::NotFound(key.to_owned()))
    }

    async fn put(&self, _: &str, _: Content, _: &Metadata) -> Result<String, StoreError> {
        Ok("tag".to_owned())
    }

    async fn copy(&self, _: &ObjectInfo, _: &str, _: &Metadata) -> Result<String, StoreError> {
        Ok("tag".to_owned())
    }

    async fn delete(&self, _: &str) -> Result<(), StoreError> {
        Ok(())
    }
}
