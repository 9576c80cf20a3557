//! SCRAM-SHA-256 (RFC 5802, RFC 7677), the client's side. Pure: strings in, strings out.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::error::{Code, Error, Result};

/// Fewer iterations than this are refused: the server would be of no use against a listener.
const MIN_ITERATIONS: u32 = 4096;
/// More than this would be a way to keep the router busy.
const MAX_ITERATIONS: u32 = 10_000_000;

/// `PBKDF2(password, salt, iterations)`: the only costly step.
pub type SaltedPassword = [u8; 32];

/// What the server said first: needed to salt the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFirst {
    nonce: String,
    pub salt: Vec<u8>,
    pub iterations: u32,
    text: String,
}

/// One conversation.
#[derive(Debug)]
pub struct ScramClient {
    nonce: String,
    first_bare: String,
    server_signature: Option<[u8; 32]>,
}

fn failed(text: impl Into<String>) -> Error {
    Error::new(Code::AuthenticationFailed, text.into()).from_router()
}

/// A nonce of 24 random bytes.
pub fn nonce() -> String {
    BASE64_STANDARD.encode(rand::random::<[u8; 24]>())
}

/// The costly step, to be cached by salt and iterations. `password` is taken as it is (a keyFile is ASCII).
pub fn salt_password(password: &str, salt: &[u8], iterations: u32) -> SaltedPassword {
    pbkdf2::pbkdf2_hmac_array::<Sha256, 32>(password.as_bytes(), salt, iterations)
}

impl ScramClient {
    /// Begins as `user`; `nonce` must be unpredictable printable ASCII without a comma.
    pub fn new(user: &str, nonce: String) -> Self {
        let user = user.replace('=', "=3D").replace(',', "=2C");
        ScramClient { first_bare: format!("n={user},r={nonce}"), nonce, server_signature: None }
    }

    /// The client-first message.
    pub fn first(&self) -> String {
        format!("n,,{}", self.first_bare)
    }

    /// Reads the server-first message.
    pub fn read_first(&self, text: &str) -> Result<ServerFirst> {
        let (mut nonce, mut salt, mut iterations) = (None, None, None);
        for part in text.split(',') {
            match part.split_at_checked(2) {
                Some(("r=", value)) => nonce = Some(value.to_owned()),
                Some(("s=", value)) => salt = BASE64_STANDARD.decode(value).ok(),
                Some(("i=", value)) => iterations = value.parse::<u32>().ok(),
                Some(("m=", _)) => return Err(failed("The server asks for a SCRAM extension that is not known")),
                _ => {}
            }
        }
        let (Some(nonce), Some(salt), Some(iterations)) = (nonce, salt, iterations) else {
            return Err(failed("The server's first SCRAM message is not complete"));
        };
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(failed("The server's SCRAM nonce does not continue the router's"));
        }
        if !(MIN_ITERATIONS..=MAX_ITERATIONS).contains(&iterations) {
            return Err(failed(format!("The server asks for {iterations} SCRAM iterations")));
        }
        Ok(ServerFirst { nonce, salt, iterations, text: text.to_owned() })
    }

    /// The client-final message.
    pub fn finish(&mut self, server: &ServerFirst, salted: &SaltedPassword) -> String {
        let without_proof = format!("c=biws,r={}", server.nonce);
        let auth_message = format!("{},{},{without_proof}", self.first_bare, server.text);
        let client_key = mac(salted, b"Client Key");
        let stored_key: [u8; 32] = Sha256::digest(client_key).into();
        let signature = mac(&stored_key, auth_message.as_bytes());
        let proof: Vec<u8> = client_key.iter().zip(signature).map(|(a, b)| a ^ b).collect();
        self.server_signature = Some(mac(&mac(salted, b"Server Key"), auth_message.as_bytes()));
        format!("{without_proof},p={}", BASE64_STANDARD.encode(proof))
    }

    /// Checks the server-final message: the server knows the password too.
    pub fn verify(&self, text: &str) -> Result<()> {
        if let Some(error) = text.strip_prefix("e=") {
            return Err(failed(format!("The server refused the SCRAM exchange: {error}")));
        }
        let value = text.split(',').find_map(|part| part.strip_prefix("v="));
        let signature = value.and_then(|v| BASE64_STANDARD.decode(v).ok());
        match (signature, self.server_signature) {
            (Some(theirs), Some(ours)) if theirs == ours => Ok(()),
            _ => Err(failed("The server could not show that it knows the key; is another server at this address?")),
        }
    }
}

fn mac(key: &[u8; 32], data: &[u8]) -> [u8; 32] {
    // A 32-byte key always fits the block of 64 bytes.
    let mut block = [0; 64];
    block[..32].copy_from_slice(key);
    let mut mac = Hmac::<Sha256>::new(&block.into());
    mac.update(data);
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    const FIRST: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";

    /// RFC 7677, section 3.
    #[test]
    fn rfc_7677_vector() {
        let mut c = ScramClient::new("user", "rOprNGfwEbeRWgbNEkqO".into());
        assert_eq!(c.first(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let server = c.read_first(FIRST).unwrap();
        assert_eq!(server.iterations, 4096);
        let salted = salt_password("pencil", &server.salt, server.iterations);
        assert_eq!(
            c.finish(&server, &salted),
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        c.verify("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=").unwrap();
        assert!(c.verify("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5=").is_err());
        assert!(c.verify("e=invalid-proof").unwrap_err().message().contains("invalid-proof"));
        assert!(c.verify("").is_err());
    }

    #[test]
    fn refuses_bad_first_messages() {
        let c = ScramClient::new("a=b,c", "rOprNGfwEbeRWgbNEkqO".into());
        assert_eq!(c.first(), "n,,n=a=3Db=2Cc,r=rOprNGfwEbeRWgbNEkqO");
        for bad in [
            "",
            "r=x,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            "r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            "r=rOprNGfwEbeRWgbNEkqOz,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1",
            "r=rOprNGfwEbeRWgbNEkqOz,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4000000000",
            "r=rOprNGfwEbeRWgbNEkqOz,s=*,i=4096",
            "m=x,r=rOprNGfwEbeRWgbNEkqOz,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            "ü,é",
        ] {
            assert_eq!(c.read_first(bad).unwrap_err().code(), 18, "{bad}");
        }
        assert!(ScramClient::new("user", "rOprNGfwEbeRWgbNEkqO".into()).verify("v=AAAA").is_err());
    }

    #[test]
    fn nonces_differ() {
        assert_ne!(nonce(), nonce());
        assert_eq!(nonce().len(), 32);
    }
}
