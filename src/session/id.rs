//! `lsid` as clients send it.

use bson::spec::BinarySubtype;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use crate::bsonx;
use crate::error::{Code, Error, Result};

/// The UUID of a logical session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub [u8; 16]);

impl SessionId {
    /// A fresh one, for `startSession`.
    pub fn random() -> Self {
        SessionId(uuid::Uuid::new_v4().into_bytes())
    }

    /// Reads `{id: UUID, …}`.
    ///
    /// # Errors
    /// 40414 where `id` is missing; TypeMismatch (14) where it is not a UUID.
    pub fn parse(lsid: &RawDocument) -> Result<Self> {
        match bsonx::get(lsid, "id") {
            Some(RawBsonRef::Binary(b)) if b.subtype == BinarySubtype::Uuid => match b.bytes.try_into() {
                Ok(bytes) => Ok(SessionId(bytes)),
                Err(_) => Err(Error::with_code(207, "uuid must be a 16-byte binary field with UUID (4) subtype")),
            },
            Some(RawBsonRef::Binary(b)) => Err(Error::new(
                Code::TypeMismatch,
                format!(
                    "BSON field 'OperationSessionInfo.lsid.id' is the wrong binData type '{}', expected type 'UUID'",
                    subtype_name(b.subtype)
                ),
            )),
            Some(other) => Err(Error::new(
                Code::TypeMismatch,
                format!(
                    "BSON field 'OperationSessionInfo.lsid.id' is the wrong type '{}', expected type 'binData'",
                    bsonx::type_name(other.element_type())
                ),
            )),
            None => Err(Error::with_code(
                40414,
                "BSON field 'OperationSessionInfo.lsid.id' is missing but a required field",
            )),
        }
    }

    /// The session of a command's body, if it names a valid one.
    pub fn of_command(body: &RawDocument) -> Option<Self> {
        bsonx::doc(body, "lsid").and_then(|lsid| SessionId::parse(lsid).ok())
    }

    /// `{id: UUID}`.
    pub fn to_doc(self) -> RawDocumentBuf {
        rawdoc! { "id": bson::Binary { subtype: BinarySubtype::Uuid, bytes: self.0.to_vec() } }
    }
}

impl std::fmt::Debug for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        uuid::Uuid::from_bytes(self.0).fmt(f)
    }
}

fn subtype_name(subtype: BinarySubtype) -> &'static str {
    match subtype {
        BinarySubtype::Generic => "general",
        BinarySubtype::Function => "function",
        BinarySubtype::UuidOld => "UUID (old)",
        BinarySubtype::Md5 => "MD5",
        BinarySubtype::Encrypted => "encrypted",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn round_trip() {
        let id = SessionId::random();
        assert_eq!(SessionId::parse(&id.to_doc()).unwrap(), id);
        assert_eq!(SessionId::of_command(&rawdoc! {"ping": 1, "lsid": id.to_doc()}), Some(id));
        assert_eq!(SessionId::of_command(&rawdoc! {"ping": 1}), None);
    }

    #[test]
    fn refused() {
        let code = |doc: RawDocumentBuf| SessionId::parse(&doc).unwrap_err().code();
        assert_eq!(code(rawdoc! {}), 40414);
        assert_eq!(code(rawdoc! {"id": 1}), 14);
        assert_eq!(code(rawdoc! {"id": bson::Binary { subtype: BinarySubtype::Generic, bytes: vec![0; 16] }}), 14);
        assert_eq!(code(rawdoc! {"id": bson::Binary { subtype: BinarySubtype::Uuid, bytes: vec![0; 15] }}), 207);
    }
}
