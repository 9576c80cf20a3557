//! The `mongodb` driver, for the control plane: the catalog's replica set and what `addShard` asks a new shard.

use std::time::Duration;

use mongodb::Client;
use mongodb::options::{AuthMechanism, ClientOptions, Credential, ServerAddress, WriteConcern};

use crate::error::{Code, Error, Result, Retry};

/// Where to connect to.
#[derive(Clone, Debug)]
pub struct Target<'a> {
    /// Some members as `host:port`; with `set: None` the one server itself, whatever its role.
    pub hosts: &'a [String],
    pub set: Option<&'a str>,
    /// The content of the keyFile, where servers require authentication.
    pub key_file: Option<&'a str>,
    /// How long to look for a server before an operation fails.
    pub selection: Duration,
}

/// A client for the target; it connects in the background.
pub fn client(target: &Target<'_>) -> Result<Client> {
    let parse = |host: &String| {
        ServerAddress::parse(host).map_err(|e| Error::new(Code::BadValue, format!("'{host}' is no host:port: {e}")))
    };
    let hosts: Vec<ServerAddress> = target.hosts.iter().map(parse).collect::<Result<_>>()?;
    let mut options = ClientOptions::builder()
        .hosts(hosts)
        .app_name("mosaic".to_owned())
        .server_selection_timeout(target.selection)
        .connect_timeout(target.selection.min(Duration::from_secs(5)))
        .heartbeat_freq(Duration::from_secs(2))
        .write_concern(WriteConcern::majority())
        .build();
    options.repl_set_name = target.set.map(str::to_owned);
    options.direct_connection = target.set.is_none().then_some(true);
    options.credential = target.key_file.map(system_user);
    Client::with_options(options).map_err(|e| error(e, "config"))
}

/// The user every member of a cluster is, its password the keyFile without white space.
fn system_user(key_file: &str) -> Credential {
    Credential::builder()
        .username("__system".to_owned())
        .source("local".to_owned())
        .password(key_file.chars().filter(|c| !c.is_whitespace()).collect::<String>())
        .mechanism(AuthMechanism::ScramSha256)
        .build()
}

/// A driver's error in the terms of this router's clients; `from` is the shard (or `config`) it came from.
pub fn error(error: mongodb::error::Error, from: &str) -> Error {
    use mongodb::error::{ErrorKind, WriteFailure};
    let out = match &*error.kind {
        ErrorKind::Command(c) => Error::with_code(c.code, c.message.clone()),
        ErrorKind::Write(WriteFailure::WriteError(w)) => Error::with_code(w.code, w.message.clone()),
        ErrorKind::ServerSelection { message, .. } => {
            let text = format!("No primary of the replica set of '{from}' can be reached: {message}");
            Error::new(Code::FailedToSatisfyReadPreference, text).retry(Retry::Safe)
        }
        other => {
            let text = format!("The replica set of '{from}' cannot be used: {other}");
            Error::new(Code::HostUnreachable, text).retry(Retry::Unknown)
        }
    };
    out.from_shard(from)
}
