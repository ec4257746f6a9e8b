//! Images and Dockerfiles, as far as they are texts, archives and requests: nothing here starts a process or mounts.

pub mod dockerfile;
pub mod unpack;
