//! `Stat`: describes one entry.

use isopod_wire::rpc::MessageField;
use isopod_wire::rpc::filesystem::{StatRequest, StatResponse};

use crate::fs::entry::entry_info;
use crate::fs::{blocking, failed, resolve};
use crate::rpc::{Call, RpcError};
use crate::users::Names;

pub(crate) async fn stat(call: Call, request: StatRequest) -> Result<StatResponse, RpcError> {
    let user = call.user()?;
    let path = resolve(&call, &user, &request.path)?;
    blocking(user, [path], |[path], _| {
        let doing = if path.symlink_metadata().is_err() { "file not found" } else { "error getting file info" };
        let entry = entry_info(path, &Names::read()).map_err(|error| failed(doing, &error))?;
        Ok(StatResponse { entry: MessageField::some(entry) })
    })
    .await
}
