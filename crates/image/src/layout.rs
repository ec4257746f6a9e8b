//! Writes an OCI layout as a tar archive, layer by layer, without keeping a layer in memory or writing it twice.
//!
//! The name of a blob is its hash, and stands before it in the archive. So the header of a layer is written last, over
//! a gap in front of the layer.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Seek as _, SeekFrom, Write};
use std::time::SystemTime;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::archive::{OCI_LAYOUT, blob_path, index_of, plain_header, saved_as};
use crate::manifest::{
    Config, Descriptor, Manifest, OCI_CONFIG, OCI_LAYER_GZIP, OCI_MANIFEST, RootFs, RunConfig, architecture,
};
use crate::{Digest, Reference};

/// The size of a header, and of the units that an archive consists of.
const BLOCK: u64 = 512;

/// An archive that is being written.
#[derive(Debug)]
pub struct Layout {
    file: File,
    layers: Vec<Descriptor>,
    diff_ids: Vec<Digest>,
    /// The blobs in the archive.
    blobs: HashSet<Digest>,
}

impl Layout {
    /// Starts an archive in an empty file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn begin(file: File) -> io::Result<Self> {
        let mut layout = Self { file, layers: Vec::new(), diff_ids: Vec::new(), blobs: HashSet::new() };
        layout.add("oci-layout", OCI_LAYOUT)?;
        Ok(layout)
    }

    /// Adds the next layer. `fill` writes it as a tar archive.
    ///
    /// # Errors
    /// If `fill` fails, or the file cannot be written. The archive cannot be used after that.
    pub fn layer<E: From<io::Error>>(&mut self, fill: impl FnOnce(&mut dyn Write) -> Result<(), E>) -> Result<(), E> {
        let start = self.file.stream_position()?;
        self.file.write_all(&[0; BLOCK as usize])?;
        let blob = Hashing::new(BufWriter::with_capacity(1 << 18, &mut self.file));
        let mut layer = Hashing::new(GzEncoder::new(blob, Compression::default()));
        fill(&mut layer)?;
        let (diff_id, encoder, _) = layer.finish();
        let (digest, out, size) = encoder.finish()?.finish();
        out.into_inner().map_err(io::IntoInnerError::into_error)?;
        if self.blobs.insert(digest.clone()) {
            pad(&mut self.file, size)?;
            let end = self.file.stream_position()?;
            self.file.seek(SeekFrom::Start(start))?;
            self.file.write_all(header(&blob_path(&digest), size)?.as_bytes())?;
            self.file.seek(SeekFrom::Start(end))?;
        } else {
            self.file.set_len(start)?;
            self.file.seek(SeekFrom::Start(start))?;
        }
        self.layers.push(describe(OCI_LAYER_GZIP, digest, size));
        self.diff_ids.push(diff_id);
        Ok(())
    }

    /// Finishes the archive and returns its file, and the digest of the image.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(mut self, name: &Reference, run: RunConfig, created: SystemTime) -> io::Result<(File, Digest)> {
        let config = Config {
            config: run,
            rootfs: RootFs { diff_ids: std::mem::take(&mut self.diff_ids), kind: "layers".to_owned() },
            architecture: architecture().to_owned(),
            os: "linux".to_owned(),
            created: OffsetDateTime::from(created)
                .replace_nanosecond(0)
                .ok()
                .and_then(|time| time.format(&Rfc3339).ok()),
        };
        let config = self.add_json(OCI_CONFIG, &config)?;
        let layers = std::mem::take(&mut self.layers);
        let saved = saved_as(name, &config, &layers);
        let manifest = Manifest { schema_version: 2, media_type: OCI_MANIFEST.to_owned(), config, layers };
        let manifest = self.add_json(OCI_MANIFEST, &manifest)?;
        let digest = manifest.digest.clone();
        self.add("index.json", &serde_json::to_vec(&index_of(name, manifest))?)?;
        self.add("manifest.json", &serde_json::to_vec(&[saved])?)?;
        self.file.write_all(&[0; 2 * BLOCK as usize])?;
        Ok((self.file, digest))
    }

    fn add_json(&mut self, media_type: &str, document: &impl Serialize) -> io::Result<Descriptor> {
        let text = serde_json::to_vec(document)?;
        let digest = Digest::of(&text);
        self.add(&blob_path(&digest), &text)?;
        Ok(describe(media_type, digest, text.len() as u64))
    }

    fn add(&mut self, path: &str, contents: &[u8]) -> io::Result<()> {
        self.file.write_all(header(path, contents.len() as u64)?.as_bytes())?;
        self.file.write_all(contents)?;
        pad(&mut self.file, contents.len() as u64)
    }
}

fn describe(media_type: &str, digest: Digest, size: u64) -> Descriptor {
    Descriptor { media_type: media_type.to_owned(), digest, size, platform: None, annotations: BTreeMap::new() }
}

fn header(path: &str, size: u64) -> io::Result<tar::Header> {
    let mut header = plain_header(size);
    header.set_path(path)?;
    header.set_cksum();
    Ok(header)
}

fn pad(file: &mut File, size: u64) -> io::Result<()> {
    let missing = size.next_multiple_of(BLOCK) - size;
    file.write_all(&[0; BLOCK as usize][..missing as usize])
}

/// Hashes and counts what is written through it.
struct Hashing<W> {
    inner: W,
    hash: Sha256,
    bytes: u64,
}

impl<W: Write> Hashing<W> {
    fn new(inner: W) -> Self {
        Self { inner, hash: Sha256::new(), bytes: 0 }
    }

    fn finish(self) -> (Digest, W, u64) {
        (Digest::from_hash(self.hash.finalize().as_slice()), self.inner, self.bytes)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = self.inner.write(bytes)?;
        self.hash.update(&bytes[..length]);
        self.bytes += length as u64;
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Store;
    use crate::archive::{ScratchDirectory, import};

    fn layer(text: &str) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        builder.append_data(&mut plain_header(text.len() as u64), "file", text.as_bytes()).unwrap();
        builder.into_inner().unwrap()
    }

    fn write(layers: &[&str]) -> (Vec<u8>, Digest) {
        let mut layout = Layout::begin(tempfile::tempfile().unwrap()).unwrap();
        for text in layers {
            layout.layer(|out| out.write_all(&layer(text))).unwrap();
        }
        let run = RunConfig { cmd: Some(vec!["serve".to_owned()]), ..RunConfig::default() };
        let created = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_500);
        let (mut file, digest) = layout.finish(&"web:v1".parse().unwrap(), run, created).unwrap();
        let size = file.stream_position().unwrap();
        assert_eq!(file.metadata().unwrap().len(), size);
        file.rewind().unwrap();
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut file, &mut bytes).unwrap();
        (bytes, digest)
    }

    #[test]
    fn what_is_written_can_be_imported_and_has_the_same_digest_each_time() {
        let (archive, digest) = write(&["one", "two", "one"]);
        assert_eq!(write(&["one", "two", "one"]), (archive.clone(), digest.clone()));
        assert_ne!(write(&["one"]).1, digest);
        assert_eq!(archive.len() % 512, 0);

        let scratch = tempfile::tempdir().unwrap();
        let store = Store::open(&scratch.path().join("store")).unwrap();
        let room = ScratchDirectory::make(scratch.path()).unwrap();
        let names = import(&store, &archive[..], room.path(), None).unwrap();
        assert_eq!(names[0].to_string(), "docker.io/library/web:v1");
        let image = store.find(&names[0]).unwrap();
        assert_eq!(image.manifest_digest, digest);
        let wanted: Vec<Digest> = ["one", "two", "one"].iter().map(|text| Digest::of(&layer(text))).collect();
        assert_eq!(image.config.rootfs.diff_ids, wanted);
        assert_eq!(image.config.created.as_deref(), Some("2023-11-14T22:13:20Z"));
        assert_eq!(image.config.config.cmd, Some(vec!["serve".to_owned()]));
        assert_eq!(image.manifest.layers[0], image.manifest.layers[2]);
    }
}
