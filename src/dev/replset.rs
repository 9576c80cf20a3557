//! Makes replica sets out of mongods that have just been started.

use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use mongodb::Client;
use mongodb::options::{ClientOptions, ServerAddress};
use tokio::net::TcpStream;

use super::Failure;
use super::layout::SetLayout;

const POLL: Duration = Duration::from_millis(50);
/// A new set waits this long for its first election, and later ones for a dead primary.
const ELECTION_TIMEOUT_MS: i32 = 5_000;

/// Waits until something accepts connections on the port.
///
/// # Errors
/// `patience` is over.
pub async fn wait_for_port(port: u16, patience: Duration) -> Result<(), Failure> {
    let deadline = Instant::now() + patience;
    while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        if Instant::now() >= deadline {
            return Err(format!("nothing listens on port {port} after {} s", patience.as_secs()));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// A driver client of exactly one server.
///
/// # Errors
/// The driver's.
pub async fn connect(port: u16) -> Result<Client, Failure> {
    let options = ClientOptions::builder()
        .hosts(vec![ServerAddress::Tcp { host: "127.0.0.1".to_owned(), port: Some(port) }])
        .direct_connection(true)
        .app_name("mosaic dev".to_owned())
        .server_selection_timeout(Duration::from_secs(20))
        .build();
    Client::with_options(options).map_err(|e| e.to_string())
}

/// Initiates the set unless it was, and waits until it has a primary that takes writes.
///
/// # Errors
/// The members' answers; `patience` is over.
pub async fn bring_up(set: &SetLayout, patience: Duration) -> Result<(), Failure> {
    let deadline = Instant::now() + patience;
    let mut clients = Vec::new();
    for port in &set.ports {
        clients.push(connect(*port).await?);
    }
    let first = clients.first().ok_or("a replica set without members")?;
    initiate(first, set).await.map_err(|e| format!("cannot initiate the replica set {}: {e}", set.name))?;
    loop {
        for client in &clients {
            let hello = admin(client, doc! {"hello": 1}).await;
            if hello.is_ok_and(|h| h.get_bool("isWritablePrimary").unwrap_or(false)) {
                return Ok(());
            }
        }
        if Instant::now() >= deadline {
            return Err(format!("the replica set {} has no primary after {} s", set.name, patience.as_secs()));
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn initiate(client: &Client, set: &SetLayout) -> Result<(), Failure> {
    const NOT_YET_INITIALIZED: i32 = 94;
    const ALREADY_INITIALIZED: i32 = 23;
    match admin(client, doc! {"replSetGetStatus": 1}).await {
        Err(e) if code(&e) == Some(NOT_YET_INITIALIZED) => {}
        // Initiated, or starting up as a member of a set that was.
        _ => return Ok(()),
    }
    let members: Vec<Bson> = (0i32..)
        .zip(set.hosts())
        .map(|(id, host)| doc! {"_id": id, "host": host, "priority": if id == 0 { 2 } else { 1 }}.into())
        .collect();
    let several = members.len() > 1;
    let config = doc! {
        "_id": &set.name,
        "members": members,
        "settings": {"electionTimeoutMillis": ELECTION_TIMEOUT_MS},
    };
    match admin(client, doc! {"replSetInitiate": config}).await {
        Err(e) if code(&e) != Some(ALREADY_INITIALIZED) => return Err(e.to_string()),
        _ => {}
    }
    if several {
        // The first election would wait for the timeout; asking for one is only a shortcut.
        let _ = admin(client, doc! {"replSetStepUp": 1}).await;
    }
    Ok(())
}

async fn admin(client: &Client, command: Document) -> mongodb::error::Result<Document> {
    client.database("admin").run_command(command).await
}

fn code(error: &mongodb::error::Error) -> Option<i32> {
    match &*error.kind {
        mongodb::error::ErrorKind::Command(e) => Some(e.code),
        _ => None,
    }
}

/// Adds a shard through a router; a shard that is there already stays as it is.
///
/// # Errors
/// The router's answer.
pub async fn add_shard(router: &Client, set: &SetLayout) -> Result<(), Failure> {
    let command = doc! {"addShard": set.connection_string(), "name": &set.name};
    admin(router, command).await.map_err(|e| format!("cannot add the shard {}: {e}", set.name))?;
    Ok(())
}
