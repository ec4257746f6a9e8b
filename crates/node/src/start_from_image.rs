//! Starts a sandbox from the start image of its template.

use std::fs::File;
use std::io;

use isopod_checkpoint::MemoryError;
use isopod_wire::KernelFeatures;
use isopod_wire::checkpoint::RestoredAs;
use sha2::{Digest, Sha256};

use crate::boot::boot_id;
use crate::disposal::{Remains, dispose};
use crate::guest_program::guest_program_bytes;
use crate::guest_request::checkpoint_client;
use crate::provision::{HOST_NAME, ProvisionError, Provisioner, ReadySandbox};
use crate::record::StartImageRecord;
use crate::start::set_up_without_owner;
use crate::start_image::StartImage;

impl Provisioner {
    /// What a start image of a template depends on, besides the template and the limits: processes keep the environment and
    /// the clocks that they were started with.
    pub(crate) fn start_conditions(&self, on_host: bool) -> io::Result<StartImageRecord> {
        let mut hash = Sha256::new();
        let environment = serde_json::to_vec(&self.environment_for(on_host))?;
        let resolvers = self.host.network.resolvers().resolv_conf_text();
        let certificates = self.certificates.as_deref().unwrap_or_default();
        for part in [boot_id()?.as_bytes(), &environment, resolvers.as_bytes(), certificates, guest_program_bytes()] {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        Ok(StartImageRecord { conditions: hex::encode(hash.finalize()) })
    }

    /// Restores the start image that a sandbox was prepared for. After an error, the sandbox cannot be used, and the image is
    /// gone. Blocks, so call it on a blocking thread of a Tokio runtime.
    pub(crate) fn restore_start_image(&self, ready: &ReadySandbox, image: &StartImage) -> Result<(), ProvisionError> {
        let restored = tokio::runtime::Handle::current().block_on(self.restore_image(ready, image));
        restored.map_err(|error| {
            self.remove_start_image(image);
            ProvisionError::StartImage(error)
        })
    }

    async fn restore_image(&self, ready: &ReadySandbox, image: &StartImage) -> Result<(), MemoryError> {
        let failed = |what| move |source| MemoryError::File { what, source };
        if image.is_bad() {
            return Err(MemoryError::Refused("it could not be restored elsewhere".to_owned()));
        }
        let directory = File::open(&ready.directory).map_err(failed("open the sandbox's directory"))?;
        if let Some(manifest) = ready.template.manifest() {
            let set_up = set_up_without_owner(&directory, &manifest.template).await;
            set_up.map_err(io::Error::other).map_err(failed("set up the guest"))?;
        }
        let memory = image.memory.clone();
        self.restore_memory(ready, KernelFeatures::default(), memory, RestoredAs::Start).await?.go_on();
        // Not earlier: processes may have the files open.
        let guest = checkpoint_client(&directory).map_err(failed("reach the guest"))?;
        Ok(guest.set_identity(HOST_NAME).await?)
    }

    /// Removes a start image. Sandboxes that were prepared for it cannot be used any more.
    pub(crate) fn remove_start_image(&self, image: &StartImage) {
        if image.make_bad() {
            dispose(&self.host, &Remains::of(&image.record, &self.home));
        }
    }
}
