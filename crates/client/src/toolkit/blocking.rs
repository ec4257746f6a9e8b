//! A blocking version of the toolkit.

use std::io;

use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use super::{Toolkit, ToolkitError};

/// The same tools with blocking calls. Not for use inside asynchronous code.
#[derive(Debug)]
pub struct BlockingToolkit {
    toolkit: Toolkit,
    runtime: Runtime,
}

impl BlockingToolkit {
    /// Creates a runtime that runs on the calling thread.
    ///
    /// # Errors
    /// If the runtime cannot be created.
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

    /// Runs Python code. Variables are kept for the next call.
    ///
    /// # Errors
    /// See [`Toolkit::call`].
    pub fn run_python_code(&self, code: &str) -> Result<Value, ToolkitError> {
        self.runtime.block_on(self.toolkit.run_python_code(code))
    }

    /// Copies a local file into the sandbox.
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

    /// Ends the sandbox. Returns false if there was none.
    ///
    /// # Errors
    /// See [`Toolkit::close`].
    pub fn close(&self) -> Result<bool, ToolkitError> {
        self.runtime.block_on(self.toolkit.close())
    }
}
