//! Images as a base: each of their layers becomes a layer of this node.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use isopod_image::registry::Progress;
use isopod_image::unpack::{Bounds, Kind, Quota, Unpacked, decompress, unpack_within};
use isopod_image::{Digest, Reference, RunConfig};
use isopod_wire::build::RegistryAuth;
use sha2::{Digest as _, Sha256};

use super::Build;
use super::cache::Found;
use super::stack::{Settings, Stack, max_layers};
use super::step::digest_of;
use super::step_error::{StepError, chain};
use super::work::finished;
use crate::images::StoredImage;
use crate::template::{Container, Layer, make_layer};

impl Build<'_> {
    /// Gets an image from the store or its registry. The error is a message for people.
    pub(super) async fn stored_image(
        &mut self,
        reference: &Reference,
        auth: Option<&RegistryAuth>,
    ) -> Result<(Stack, Settings), String> {
        let log = self.log.clone();
        let tell = move |progress: Progress| log.try_info(progress.message);
        let stored = self.shared.images.get(reference, auth, self.spec.cache_scope.as_deref(), &tell).await?;
        let stack = self.image_stack(&stored).await?;
        Ok((stack, settings_of(&stored.image.config.config)))
    }

    async fn image_stack(&mut self, stored: &StoredImage) -> Result<Stack, String> {
        let image = &stored.image;
        let layers = &image.manifest.layers;
        let diff_ids = &image.config.rootfs.diff_ids;
        if layers.len() >= max_layers() {
            return Err(format!("it has {} layers, and a template has at most {}", layers.len(), max_layers()));
        }
        if diff_ids.len() != layers.len() {
            return Err(format!("it has {} layers, but its config lists {}", layers.len(), diff_ids.len()));
        }
        let templates = self.sandboxes.templates_directory();
        // All layers share one quota. They are unpacked in parallel, because unpacking one takes one core and layers
        // are independent.
        let quota = Arc::new(self.work.quota(Bounds::default()));
        let mut tasks = Vec::new();
        let mut parent = String::new();
        for (layer, diff_id) in layers.iter().zip(diff_ids) {
            parent = layer_chain(&parent, &layer.digest, diff_id);
            // A layer that needed a team's credentials belongs to that team. Public layers are shared by all.
            let is_public = self.shared.images.store.blob(&layer.digest).is_some();
            let key = layer_key(&parent, stored.team.as_deref().filter(|_| !is_public));
            if let Some(found) = self.cache.find(&key) {
                tasks.push((key, None, Some(found)));
                continue;
            }
            let blob = stored.store.blob(&layer.digest);
            let blob = blob.ok_or_else(|| format!("its layer {} is not in the store", layer.digest))?;
            self.log.info(format!("unpacking {}", &layer.digest.digits()[..12])).await;
            let (templates, id, diff_id) = (templates.clone(), format!("l-{key}"), diff_id.clone());
            let (quota, place) = (Arc::clone(&quota), self.shared.locks.unpacking().await);
            let task = self.work.start(move || {
                let _place = place;
                unpack_layer(&templates, &id, &blob, &diff_id, &quota).map_err(StepError::image)
            });
            tasks.push((key, Some(task), None));
        }
        let mut stack = self.scratch_stack().map_err(|error| error.message)?;
        stack.chain = digest_of(["image", image.manifest.config.digest.as_str()]);
        for (key, task, found) in tasks {
            let found = match (task, found) {
                (Some(task), _) => {
                    let (layer, unpacked) = finished(task.await).map_err(|error| error.message)?;
                    if unpacked.foreign_owners > 0 {
                        let count = unpacked.foreign_owners;
                        self.log
                            .warn(format!("{count} files belong to ids above 65535; their owner is now nobody"))
                            .await;
                    }
                    let found = Found::Layer(Arc::new(layer), unpacked.bytes);
                    self.cache.store(&key, &found).map_err(|error| error.to_string())?;
                    found
                }
                (None, Some(found)) => found,
                (None, None) => Found::Nothing,
            };
            if let Found::Layer(layer, bytes) = found {
                stack.bytes += bytes;
                stack.layers.push(layer);
            }
        }
        Ok(stack)
    }
}

/// Identifies a layer and all layers below it. The blob's digest is part of it, so that only someone who has the blob
/// finds the unpacked layer. The `diff_id` alone would not do: it appears in configs, which anyone can write.
fn layer_chain(parent: &str, blob: &Digest, diff_id: &Digest) -> String {
    // Earlier versions stored layers under "image" that needed one team's credentials but that every team could find.
    digest_of(["image2", parent, blob.as_str(), diff_id.as_str()])
}

/// The cache key of an unpacked layer, shared by all or private to one team.
fn layer_key(chain: &str, team: Option<&str>) -> String {
    match team {
        Some(team) => digest_of(["private", team, chain])[..24].to_owned(),
        None => chain[..24].to_owned(),
    }
}

fn unpack_layer(
    templates: &Path,
    id: &str,
    blob: &Path,
    diff_id: &Digest,
    quota: &Quota,
) -> Result<(Layer, Unpacked), String> {
    let mut unpacked = Unpacked::default();
    let made = make_layer(templates, id, quota, |root| {
        let file = BufReader::with_capacity(1 << 18, File::open(blob)?);
        let mut stream = Hashing { inner: decompress(file)?, hash: Sha256::new() };
        let done = unpack_within(&mut stream, root, Kind::Layer, quota);
        unpacked = done.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, chain(&error)))?;
        // The hash covers the whole stream, including what follows the end of the archive.
        quota.copy(&mut stream, &mut io::sink())?;
        let got = Digest::from_hash(stream.hash.finalize().as_slice());
        if got != *diff_id {
            let what = format!("the layer's digest is {got}, but its image says {diff_id}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(())
    });
    made.map(|layer| (layer, unpacked)).map_err(|error| chain(&error))
}

/// Hashes what is read through it.
struct Hashing<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.hash.update(&buffer[..length]);
        Ok(length)
    }
}

fn settings_of(config: &RunConfig) -> Settings {
    let mut settings = Settings::of_docker();
    let pairs = config.env.iter().flatten().filter_map(|pair| pair.split_once('='));
    settings.env.extend(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if let Some(user) = given(&config.user) {
        settings.user = user;
    }
    if let Some(directory) = given(&config.working_dir) {
        settings.workdir = settings.resolve(&directory);
    }
    if let Some(shell) = config.shell.clone().filter(|shell| !shell.is_empty()) {
        settings.shell = shell;
    }
    settings.onbuild = config.on_build.clone().unwrap_or_default();
    settings.container = Container {
        entrypoint: config.entrypoint.clone(),
        cmd: config.cmd.clone(),
        ports: config.exposed_ports.iter().flatten().map(|(port, _)| port.clone()).collect(),
        labels: config.labels.clone().unwrap_or_default(),
    };
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layers_of_an_image_share_what_it_may_hold() {
        let scratch = tempfile::tempdir().unwrap();
        let (templates, blob) = (scratch.path().join("templates"), scratch.path().join("blob"));
        // An empty archive with trailing data. That is hashed too, and may be endless.
        let bytes = vec![0; 600_000];
        std::fs::write(&blob, &bytes).unwrap();
        let quota = Quota::new(Bounds { bytes: 1_000_000, entries: 10 });
        let unpack = |id: &str| unpack_layer(&templates, id, &blob, &Digest::of(&bytes), &quota);
        assert!(unpack("l-1").is_ok());
        let refused = unpack("l-2").unwrap_err();
        assert!(refused.contains("more than 1000000 bytes"), "{refused}");
        let left = std::fs::read_dir(&templates).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(left.filter(|name| name.to_string_lossy().contains("l-2")).count(), 1, "only its lock");
    }

    #[test]
    fn an_unpacked_layer_is_found_with_its_blob_only() {
        let (blob, other, diff_id) = (Digest::of(b"blob"), Digest::of(b"other"), Digest::of(b"layer"));
        let key = |blob, team| layer_key(&layer_chain("", blob, &diff_id), team);
        assert_eq!(key(&blob, None), key(&blob, None));
        assert_ne!(key(&blob, None), key(&other, None));
        assert_ne!(key(&blob, None), key(&blob, Some("a")));
        assert_ne!(key(&blob, Some("a")), key(&blob, Some("b")));
        // The key under which earlier versions stored the layers of all teams.
        assert_ne!(key(&blob, None), digest_of(["image", "", diff_id.as_str()])[..24]);
        let above = layer_chain(&layer_chain("", &blob, &diff_id), &blob, &diff_id);
        assert_ne!(above, layer_chain("", &blob, &diff_id));
    }
}
