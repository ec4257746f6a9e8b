//! The toolkit for programs that do not await.

use std::io;

use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use super::{Toolkit, ToolkitError};

/// The same tools, each call waiting for its end. Not for use inside asynchronous code.
#[derive(Debug)]
pub struct BlockingToolkit {
    toolkit: Toolkit,
    runtime: Runtime,
}

impl BlockingToolkit {
    /// With a runtime of its own, on the thread that calls.
    ///
    /// # Errors
    /// When the system gives no resources for one.
    pub fn new(toolkit: Toolkit) -> io::Result<Self> {
        Ok(Self { toolkit, runtime: Builder::new_current_thread().enable_all().build()? })
    }

    /// Calls a tool by its name.
    ///
    /// # Errors
    /// See [`Toolkit::call`].
    pub fn call(&self, tool: &str, arguments: Value) -> Result<Value, ToolkitError> {
        self.runtime.block_on(self.toolkit.call(tool, arguments))
    }

    /// Runs Python code; variables stay for the next call.
    ///
    /// # Errors
    /// See [`Toolkit::call`].
    pub fn run_python_code(&self, code: &str) -> Result<Value, ToolkitError> {
        self.runtime.block_on(self.toolkit.run_python_code(code))
    }

    /// Copies a file of this machine into the sandbox.
    ///
    /// # Errors
    /// See [`Toolkit::upload_file`].
    pub fn upload_file(&self, local_path: &str, remote_path: &str) -> Result<Value, ToolkitError> {
        self.runtime.block_on(self.toolkit.upload_file(local_path, remote_path))
    }

    /// Copies a file of the sandbox to this machine.
    ///
    /// # Errors
    /// See [`Toolkit::download_file`].
    pub fn download_file(&self, remote_path: &str, local_path: &str) -> Result<Value, ToolkitError> {
        self.runtime.block_on(self.toolkit.download_file(remote_path, local_path))
    }

    /// Ends the sandbox. False when there was none.
    ///
    /// # Errors
    /// See [`Toolkit::close`].
    pub fn close(&self) -> Result<bool, ToolkitError> {
        self.runtime.block_on(self.toolkit.close())
    }
}
