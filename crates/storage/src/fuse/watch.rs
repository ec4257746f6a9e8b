//! Tells the kernel to drop what it has cached when it was changed through another mount.
//!
//! This needs a thread of its own, because the kernel may block it on a lock that is held by a request that we have not
//! answered yet.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;

use super::device::Device;
use super::wire::{forget_name, forget_node, node_of};
use crate::vfs::{Change, Ino, MountId, Watcher};

type Message = (Vec<u8>, Arc<Semaphore>);

/// What the kernel knows about one mount.
#[derive(Debug)]
pub(super) struct Watch {
    id: MountId,
    root: Ino,
    /// How often each node was passed to the kernel. Nodes that are not in here cannot be in its cache.
    known: Mutex<HashMap<Ino, u64>>,
    messages: Sender<Message>,
}

impl Watch {
    pub(super) fn start(id: MountId, root: Ino, device: Arc<Device>) -> std::io::Result<Arc<Self>> {
        let (messages, inbox) = channel();
        std::thread::Builder::new().name("fuse-forget".to_owned()).spawn(move || send(&device, &inbox))?;
        Ok(Arc::new(Self { id, root, known: Mutex::new(HashMap::from([(root, 1)])), messages }))
    }

    pub(super) fn remember(&self, ino: Ino) {
        *self.known.lock().expect("no panic while held").entry(ino).or_default() += 1;
    }

    /// Returns how many of these times count. The root is never forgotten.
    pub(super) fn forget_times(&self, ino: Ino, times: u64) -> u64 {
        let mut known = self.known.lock().expect("no panic while held");
        let Some(count) = known.get_mut(&ino).filter(|_| ino != self.root) else { return 0 };
        let times = times.min(*count);
        *count -= times;
        if *count == 0 {
            known.remove(&ino);
        }
        times
    }

    pub(super) fn knows(&self, ino: Ino) -> bool {
        self.known.lock().expect("no panic while held").contains_key(&ino)
    }

    /// Everything that the kernel still knows, at the end.
    pub(super) fn drain(&self) -> Vec<(Ino, u64)> {
        let mut known = self.known.lock().expect("no panic while held");
        known.remove(&self.root);
        known.drain().collect()
    }

    fn message(&self, change: &Change) -> Option<Vec<u8>> {
        let known = self.known.lock().expect("no panic while held");
        let node = |ino: &Ino| known.contains_key(ino).then(|| node_of(*ino, self.root));
        match change {
            Change::Attributes(ino) => node(ino).map(|node| forget_node(node, false)),
            Change::Content(ino) => node(ino).map(|node| forget_node(node, true)),
            Change::Entry { parent, name } => node(parent).map(|node| forget_name(node, name)),
        }
    }
}

impl Watcher for Watch {
    fn id(&self) -> MountId {
        self.id
    }

    fn forget(&self, changes: &[Change], done: &Arc<Semaphore>) -> u32 {
        let messages = changes.iter().filter_map(|change| self.message(change));
        messages.map(|message| u32::from(self.messages.send((message, done.clone())).is_ok())).sum()
    }
}

fn send(device: &Device, inbox: &Receiver<Message>) {
    for (message, done) in inbox {
        device.notify(&message);
        done.add_permits(1);
    }
}
