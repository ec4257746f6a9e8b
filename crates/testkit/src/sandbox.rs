//! A sandbox for a test.

use isopod_guest_client::guest::{Guest, GuestError, StartProcess};
use isopod_wire::node::Incarnation;

use crate::ShellOutput;

/// A running sandbox and the guest in it.
#[derive(Clone, Debug)]
pub struct TestSandbox {
    /// Its id and execution.
    pub incarnation: Incarnation,
    /// Its guest, as `user`.
    pub guest: Guest,
    /// The pid of its first process on the host.
    pub init_pid: u32,
}

impl TestSandbox {
    /// Runs a shell command as `user`.
    ///
    /// # Panics
    /// If the guest does not answer.
    #[track_caller]
    pub fn sh(&self, command: &str) -> impl Future<Output = ShellOutput> + use<> {
        self.sh_as("user", command)
    }

    /// Runs a shell command as the sandbox's root.
    ///
    /// # Panics
    /// If the guest does not answer.
    #[track_caller]
    pub fn sh_root(&self, command: &str) -> impl Future<Output = ShellOutput> + use<> {
        self.sh_as("root", command)
    }

    /// Runs a shell command as any user.
    ///
    /// # Panics
    /// If the guest does not answer.
    #[track_caller]
    pub fn sh_as(&self, user: &str, command: &str) -> impl Future<Output = ShellOutput> + use<> {
        let attempt = self.try_sh_as(user, command);
        let command = command.to_owned();
        async move { attempt.await.unwrap_or_else(|error| panic!("could not run {command:?}: {error:?}")) }
    }

    /// Runs a shell command that may fail to start.
    pub fn try_sh_as(
        &self,
        user: &str,
        command: &str,
    ) -> impl Future<Output = Result<ShellOutput, GuestError>> + use<> {
        let guest = self.guest.clone().with_user(user);
        let start = StartProcess::shell(command);
        async move { Ok(ShellOutput::new(guest.run(start).await?)) }
    }
}
