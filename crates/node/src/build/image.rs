//! Images as a base: their layers become kept layers, one each.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use isopod_image::unpack::{Bounds, Kind, Unpacked, decompress, unpack};
use isopod_image::{Digest, Image, Reference, RunConfig};
use isopod_wire::build::RegistryAuth;
use sha2::{Digest as _, Sha256};

use super::Builder;
use super::cache::Found;
use super::stack::{Settings, Stack, most_layers};
use super::step::digest_of;
use super::trouble::chain;
use crate::template::{KeptLayer, make_layer};

impl Builder<'_> {
    /// An image from the store or its registry. The error says why not, for people.
    pub(super) async fn stored_image(
        &mut self,
        reference: &Reference,
        auth: Option<&RegistryAuth>,
    ) -> Result<(Stack, Settings), String> {
        let log = self.log.clone();
        let image = self.fleet.images.get(reference, auth, &move |progress| log.try_info(progress.message)).await?;
        let stack = self.image_stack(&image).await?;
        Ok((stack, settings_of(&image.config.config)))
    }

    async fn image_stack(&mut self, image: &Image) -> Result<Stack, String> {
        let layers = &image.manifest.layers;
        let diff_ids = &image.config.rootfs.diff_ids;
        if layers.len() >= most_layers() {
            return Err(format!("it has {} layers, and a template has at most {}", layers.len(), most_layers()));
        }
        if diff_ids.len() != layers.len() {
            return Err(format!("it has {} layers, and its config tells of {}", layers.len(), diff_ids.len()));
        }
        let templates = self.fleet.templates_directory();
        // All at once: unpacking one takes one core, and layers do not need each other.
        let mut tasks = Vec::new();
        let mut parent = String::new();
        for (layer, diff_id) in layers.iter().zip(diff_ids) {
            parent = digest_of(["image", &parent, diff_id.as_str()]);
            let key = parent[..24].to_owned();
            if let Some(found) = self.cache.find(&key) {
                tasks.push((key, None, Some(found)));
                continue;
            }
            let blob = self.fleet.images.store.blob(&layer.digest);
            let blob = blob.ok_or_else(|| format!("its layer {} is not in the store", layer.digest))?;
            self.log.info(format!("unpacking {}", &layer.digest.digits()[..12])).await;
            let (templates, id, diff_id) = (templates.clone(), format!("l-{key}"), diff_id.clone());
            let task = tokio::task::spawn_blocking(move || unpack_layer(&templates, &id, &blob, &diff_id));
            tasks.push((key, Some(task), None));
        }
        let mut stack = self.scratch_stack().map_err(|trouble| trouble.message)?;
        stack.chain = digest_of(["image", image.manifest.config.digest.as_str()]);
        for (key, task, found) in tasks {
            let found = match (task, found) {
                (Some(task), _) => {
                    let (layer, unpacked) = task.await.map_err(|error| error.to_string())??;
                    if unpacked.foreign_owners > 0 {
                        let count = unpacked.foreign_owners;
                        self.log.warn(format!("{count} files belong to ids above 65535; they are nobody's now")).await;
                    }
                    let found = Found::Layer(Arc::new(layer), unpacked.bytes);
                    self.cache.note(&key, &found).map_err(|error| error.to_string())?;
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

fn unpack_layer(templates: &Path, id: &str, blob: &PathBuf, diff_id: &Digest) -> Result<(KeptLayer, Unpacked), String> {
    let mut unpacked = Unpacked::default();
    let made = make_layer(templates, id, |root| {
        let file = BufReader::with_capacity(1 << 18, File::open(blob)?);
        let mut stream = Hashing { inner: decompress(file)?, hash: Sha256::new() };
        let done = unpack(&mut stream, root, Kind::Layer, Bounds::default());
        unpacked = done.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, chain(&error)))?;
        // The hash is that of everything, also of what follows the archive's end.
        io::copy(&mut stream, &mut io::sink())?;
        let got = Digest::from_hash(stream.hash.finalize().as_slice());
        if got != *diff_id {
            let what = format!("the layer is {got}, and its image says {diff_id}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(())
    });
    made.map(|layer| (layer, unpacked)).map_err(|error| chain(&error))
}

/// Hashes what is read.
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
    settings
}
