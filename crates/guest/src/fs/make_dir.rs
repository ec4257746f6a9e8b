//! `MakeDir`: creates a directory and its missing parents.

use std::io;

use isopod_wire::rpc::MessageField;
use isopod_wire::rpc::filesystem::{MakeDirRequest, MakeDirResponse};

use crate::fs::entry::entry_info;
use crate::fs::{blocking, failed, resolve};
use crate::paths::ensure_dirs;
use crate::rpc::{Call, Code, RpcError};
use crate::users::Names;

pub(crate) async fn make_dir(call: Call, request: MakeDirRequest) -> Result<MakeDirResponse, RpcError> {
    let user = call.user()?;
    let path = resolve(&call, &user, &request.path)?;
    blocking(user, [path], |[path], user| {
        match std::fs::metadata(path) {
            Ok(meta) if meta.is_dir() => {
                let message = format!("directory already exists: {}", path.display());
                return Err(RpcError::new(Code::AlreadyExists, message));
            }
            Ok(_) => {
                let message = format!("path already exists but it is not a directory: {}", path.display());
                return Err(RpcError::new(Code::InvalidArgument, message));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("error getting file info", &error)),
        }
        ensure_dirs(path, user.uid, user.gid).map_err(|error| failed("error creating directory", &error))?;
        let entry = entry_info(path, &Names::read()).map_err(|error| failed("error getting file info", &error))?;
        Ok(MakeDirResponse { entry: MessageField::some(entry) })
    })
    .await
}
