//! A client of its own, so that a driver's costs do not hide the router's: one socket, one request at a time, raw BSON.

use std::io;

use bson::spec::BinarySubtype;
use bson::{Binary, RawDocument, RawDocumentBuf, cstr, rawdoc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const OP_MSG: i32 = 2013;

/// One connection.
pub struct Client {
    stream: TcpStream,
    next_id: i32,
    out: Vec<u8>,
    reply: Vec<u8>,
    session: Binary,
}

/// A command: its body without `lsid` and `$db`, and documents that go beside it.
pub struct Command {
    pub body: RawDocumentBuf,
    pub documents: Option<(&'static str, Vec<RawDocumentBuf>)>,
}

impl From<RawDocumentBuf> for Command {
    fn from(body: RawDocumentBuf) -> Self {
        Command { body, documents: None }
    }
}

impl Client {
    pub async fn connect(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let session = Binary { subtype: BinarySubtype::Uuid, bytes: rand::random::<[u8; 16]>().to_vec() };
        let mut client = Client { stream, next_id: 1, out: Vec::new(), reply: Vec::new(), session };
        client.run("admin", rawdoc! {"hello": 1}.into()).await?;
        Ok(client)
    }

    /// Sends a command and reads its reply.
    ///
    /// # Errors
    /// The connection's; a reply with `ok: 0` or write errors.
    pub async fn run(&mut self, db: &str, command: Command) -> io::Result<&RawDocument> {
        self.encode(db, command)?;
        self.stream.write_all(&self.out).await?;
        let mut header = [0u8; 16];
        self.stream.read_exact(&mut header).await?;
        let length = usize::try_from(i32::from_le_bytes([header[0], header[1], header[2], header[3]])).unwrap_or(0);
        if !(26..=64_000_000).contains(&length) {
            return Err(io::Error::other("a reply of impossible length"));
        }
        self.reply.resize(length - 16, 0);
        self.stream.read_exact(&mut self.reply).await?;
        // Flags (4) and the kind of the only section (1) come before the document.
        let document = RawDocument::from_bytes(self.reply.get(5..).unwrap_or_default()).map_err(io::Error::other)?;
        let ok = document.get("ok").ok().flatten().is_some_and(|v| v.as_f64() == Some(1.0) || v.as_i32() == Some(1));
        if !ok || document.get("writeErrors").ok().flatten().is_some() {
            return Err(io::Error::other(format!("the reply is an error: {document:?}")));
        }
        Ok(document)
    }

    fn encode(&mut self, db: &str, command: Command) -> io::Result<()> {
        let mut body = command.body;
        body.append(cstr!("lsid"), rawdoc! {"id": self.session.clone()});
        body.append(cstr!("$db"), db);
        self.next_id = self.next_id.wrapping_add(1);
        let out = &mut self.out;
        out.clear();
        out.extend_from_slice(&[0; 4]);
        for n in [self.next_id, 0, OP_MSG, 0] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.push(0);
        out.extend_from_slice(body.as_bytes());
        if let Some((name, documents)) = command.documents {
            out.push(1);
            let start = out.len();
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(name.as_bytes());
            out.push(0);
            for document in &documents {
                out.extend_from_slice(document.as_bytes());
            }
            put_length(out, start)?;
        }
        put_length(out, 0)
    }
}

/// Writes the number of bytes from `start` on at `start`.
fn put_length(out: &mut [u8], start: usize) -> io::Result<()> {
    let length = i32::try_from(out.len() - start).map_err(io::Error::other)?;
    let place = out.get_mut(start..start + 4).ok_or_else(|| io::Error::other("no room for a length"))?;
    place.copy_from_slice(&length.to_le_bytes());
    Ok(())
}
