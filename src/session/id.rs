//! `lsid` as clients send it.

use bson::spec::BinarySubtype;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use crate::bsonx::{self, kind};
use crate::error::{Code, Error, Result};

/// The UUID of a logical session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub [u8; 16]);

impl SessionId {
    /// A fresh one, for `startSession`.
    pub fn random() -> Self {
        SessionId(uuid::Uuid::new_v4().into_bytes())
    }

    /// Reads `{id: UUID, uid?}`.
    ///
    /// # Errors
    /// As a server: 40414 where `id` is missing, TypeMismatch (14), InvalidUUID (207), UnsupportedFormat (12), 40415 for
    /// unknown fields; InvalidOptions (72) for the sessions that servers have among themselves.
    pub fn parse(lsid: &RawDocument) -> Result<Self> {
        let bytes = lsid.as_bytes();
        let mut id = None;
        for field in bsonx::fields(bytes).filter(|f| !matches!(f.kind, kind::NULL | kind::UNDEFINED)) {
            let Some(value) = field.decode(bytes) else {
                return Err(Error::new(Code::InvalidBSON, "The value of 'lsid' is malformed"));
            };
            match field.key {
                b"id" => id = Some(SessionId(uuid("id", value)?)),
                b"uid" => match binary("uid", BinarySubtype::Generic, value)?.len() {
                    32 => {}
                    length => {
                        let text = format!("Unsupported SHA256Block hash length: {length}");
                        return Err(Error::new(Code::UnsupportedFormat, text));
                    }
                },
                b"txnNumber" if field.kind != kind::INT64 => return Err(wrong_type("txnNumber", value, "long")),
                b"txnUUID" => drop(uuid("txnUUID", value)?),
                b"txnNumber" => {}
                key => {
                    let key = String::from_utf8_lossy(key);
                    let text = format!("BSON field 'OperationSessionInfo.lsid.{key}' is an unknown field.");
                    return Err(Error::with_code(40415, text));
                }
            }
        }
        let id = id.ok_or_else(|| {
            Error::with_code(40414, "BSON field 'OperationSessionInfo.lsid.id' is missing but a required field")
        })?;
        let given = |name| bsonx::get(lsid, name).is_some_and(|v| v != RawBsonRef::Null);
        // More fields than `id` and `uid` are rare.
        if bsonx::fields(bytes).nth(1).is_none() {
            return Ok(id);
        }
        match (given("txnUUID"), given("txnNumber")) {
            (true, _) => {
                Err(Error::new(Code::InvalidOptions, "Internal sessions are not supported outside of transactions"))
            }
            (false, true) => {
                Err(Error::new(Code::InvalidOptions, "Cannot specify txnNumber in lsid without specifying txnUUID"))
            }
            (false, false) => Ok(id),
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

fn uuid(name: &str, value: RawBsonRef<'_>) -> Result<[u8; 16]> {
    binary(name, BinarySubtype::Uuid, value)?
        .try_into()
        .map_err(|_| Error::new(Code::InvalidUUID, "uuid must be a 16-byte binary field with UUID (4) subtype"))
}

fn binary<'a>(name: &str, subtype: BinarySubtype, value: RawBsonRef<'a>) -> Result<&'a [u8]> {
    match value {
        RawBsonRef::Binary(b) if b.subtype == subtype => Ok(b.bytes),
        RawBsonRef::Binary(b) => Err(Error::new(
            Code::TypeMismatch,
            format!(
                "BSON field 'OperationSessionInfo.lsid.{name}' is the wrong binData type '{}', expected type '{}'",
                subtype_name(b.subtype),
                subtype_name(subtype)
            ),
        )),
        other => Err(wrong_type(name, other, "binData")),
    }
}

fn wrong_type(name: &str, value: RawBsonRef<'_>, expected: &str) -> Error {
    let found = bsonx::type_name(value.element_type());
    let text = format!(
        "BSON field 'OperationSessionInfo.lsid.{name}' is the wrong type '{found}', expected type '{expected}'"
    );
    Error::new(Code::TypeMismatch, text)
}

fn subtype_name(subtype: BinarySubtype) -> &'static str {
    match subtype {
        BinarySubtype::Generic => "general",
        BinarySubtype::Function => "function",
        BinarySubtype::UuidOld => "UUID(deprecated)",
        BinarySubtype::Uuid => "UUID",
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
        let with = |name: &str, value: bson::RawBson| {
            let mut doc = SessionId::random().to_doc();
            doc.append(bson::raw::CString::try_from(name).unwrap(), value);
            code(doc)
        };
        let binary = |subtype, length| bson::Binary { subtype, bytes: vec![0; length] };
        assert_eq!(with("nope", 1.into()), 40415);
        assert_eq!(with("uid", bson::RawBson::Binary(binary(BinarySubtype::Generic, 31))), 12);
        assert_eq!(with("txnNumber", 1_i64.into()), 72);
        assert_eq!(with("txnUUID", bson::RawBson::Binary(binary(BinarySubtype::Uuid, 16))), 72);
        assert_eq!(code(rawdoc! {"id": bson::Binary { subtype: BinarySubtype::Generic, bytes: vec![0; 16] }}), 14);
        assert_eq!(code(rawdoc! {"id": bson::Binary { subtype: BinarySubtype::Uuid, bytes: vec![0; 15] }}), 207);
    }
}
