//! A client's command.

use bson::raw::RawBsonRef;
use bson::{RawArray, RawDocument};

use super::CommandSpec;
use super::generic::{Generic, bad_value};
use super::read::numbers;
use crate::bsonx;
use crate::catalog::model::Namespace;
use crate::error::{Code, Error, Result};
use crate::wire::Message;

/// One command of a client.
pub struct Request {
    pub message: Message,
    pub spec: &'static CommandSpec,
    pub generic: Generic,
}

impl Request {
    pub fn body(&self) -> &RawDocument {
        self.message.document()
    }

    pub fn db(&self) -> &str {
        let (start, len) = self.generic.db;
        // The range was taken from a checked string of this very body.
        std::str::from_utf8(&self.message.body[start..start + len]).unwrap_or("")
    }

    /// A command of the router's own that does this one's work: in the same session and under the same limits, as `body` says.
    ///
    /// # Errors
    /// Those of [`Generic::scan`].
    pub fn standing_for(&self, command: &'static str, body: Vec<u8>) -> Result<Request> {
        let spec = super::lookup(command).ok_or_else(|| Error::internal(format!("there is no command {command}")))?;
        let message = Message { body: body.into(), sequences: smallvec::SmallVec::new(), ..self.message.clone() };
        let generic = Generic::scan(message.document())?;
        Ok(Request { message, spec, generic })
    }

    /// How many documents, updates or deletes a write command carries; 1 for every other command.
    pub fn statements(&self) -> u64 {
        let field = match self.spec.name {
            "insert" => "documents",
            "update" => "updates",
            "delete" => "deletes",
            _ => return 1,
        };
        self.message.document_count(field).unwrap_or(1) as u64
    }

    /// The value of the command's own field (`{find: <this>, …}`).
    pub fn argument(&self) -> Result<RawBsonRef<'_>> {
        let body = &self.message.body;
        match bsonx::fields(body).next() {
            Some(field) => field.decode(body).ok_or_else(|| bad_value(field.key)),
            None => Err(Error::new(Code::FailedToParse, "The command is empty")),
        }
    }

    /// The namespace of a command on a collection: `$db` and the command's own string.
    ///
    /// # Errors
    /// InvalidNamespace (73) where the name is empty or not a legal collection name, BadValue (2) where it is no string.
    pub fn namespace(&self) -> Result<Namespace> {
        match self.argument()? {
            RawBsonRef::String(coll) => Namespace::new(self.db(), coll),
            other => {
                // A server's older commands have other codes for this.
                let (code, separator) = match self.spec.name {
                    "collStats" | "validate" | "convertToCapped" | "count" | "distinct" => (Code::InvalidNamespace, ""),
                    "aggregate" => (Code::TypeMismatch, ":"),
                    _ => (Code::BadValue, ""),
                };
                let kind = bsonx::type_name(other.element_type());
                Err(Error::new(code, format!("collection name has invalid type{separator} {kind}")))
            }
        }
    }

    /// The full name that an admin command names in its own field (`{shardCollection: "db.coll"}`).
    pub fn full_namespace(&self) -> Result<Namespace> {
        match self.argument()? {
            RawBsonRef::String(full) => Namespace::parse(full),
            other => Err(Error::new(
                Code::TypeMismatch,
                format!(
                    "The '{}' command takes a namespace string, not {}",
                    self.spec.name,
                    bsonx::type_name(other.element_type())
                ),
            )),
        }
    }

    pub fn get(&self, key: &str) -> Option<RawBsonRef<'_>> {
        bsonx::get(self.body(), key)
    }

    /// A sub-document argument; TypeMismatch (14) if it is something else.
    pub fn doc_arg(&self, key: &str) -> Result<Option<&RawDocument>> {
        match self.get(key) {
            None | Some(RawBsonRef::Null) => Ok(None),
            Some(RawBsonRef::Document(d)) => Ok(Some(d)),
            Some(other) => Err(self.wrong_type(key, other, "object")),
        }
    }

    pub fn array_arg(&self, key: &str) -> Result<Option<&RawArray>> {
        match self.get(key) {
            None => Ok(None),
            Some(RawBsonRef::Array(a)) => Ok(Some(a)),
            Some(RawBsonRef::Null) => Err(null_array(key)),
            Some(other) => Err(self.wrong_type(key, other, "array")),
        }
    }

    pub fn str_arg(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(RawBsonRef::String(s)) => Ok(Some(s)),
            Some(other) => Err(self.wrong_type(key, other, "string")),
        }
    }

    pub fn bool_arg(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(
                v @ (RawBsonRef::Boolean(_) | RawBsonRef::Int32(_) | RawBsonRef::Int64(_) | RawBsonRef::Double(_)),
            ) => Ok(Some(bsonx::is_true(v))),
            Some(other) => Err(numbers::wrong_type(self.spec.name, key, other, "bool or number")),
        }
    }

    pub fn int_arg(&self, key: &str) -> Result<Option<i64>> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => bsonx::as_int(v).map(Some).ok_or_else(|| self.wrong_type(key, v, "number")),
        }
    }

    fn wrong_type(&self, key: &str, value: RawBsonRef<'_>, expected: &str) -> Error {
        Error::new(
            Code::TypeMismatch,
            format!(
                "BSON field '{}.{key}' is the wrong type '{}', expected type '{expected}'",
                self.spec.name,
                bsonx::type_name(value.element_type())
            ),
        )
    }
}

/// What a server says of null where it expects an array.
pub fn null_array(field: &str) -> Error {
    Error::with_code(10065, format!("invalid parameter: expected an object ({field})"))
}
