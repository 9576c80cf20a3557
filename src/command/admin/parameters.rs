//! `getParameter` and `setParameter`, over the table in `config::params`.

use bson::{Bson, Document, doc};
use futures_util::future::BoxFuture;

use super::reply;
use crate::bsonx;
use crate::command::{Access, CommandSpec, Ctx, Reply, Request};
use crate::config::params::{PARAMETERS, parameter};
use crate::error::{Code, Error, Result};
use crate::stats::log;

pub const COMMANDS: &[CommandSpec] = &[
    CommandSpec::new("getParameter", Access::Cluster, "the values of server parameters", get_parameter)
        .admin()
        .secondary_ok(),
    CommandSpec::new("setParameter", Access::Cluster, "changes a server parameter", set_parameter)
        .admin()
        .secondary_ok(),
];

/// Fields of a command that are not names of parameters.
const GENERIC: &[&str] = &[
    "$db",
    "lsid",
    "$clusterTime",
    "$readPreference",
    "comment",
    "maxTimeMS",
    "apiVersion",
    "apiStrict",
    "apiDeprecationErrors",
    "readConcern",
    "writeConcern",
    "txnNumber",
    "allParameters",
    "showDetails",
    "setAt",
];

/// The log's verbosities by component: a document, and the process's rather than the router's.
const VERBOSITIES: &str = "logComponentVerbosity";

/// Computed parameters that `getParameter: "*"` shows.
const COMPUTED: &[&str] = &["authenticationMechanisms", VERBOSITIES];

/// Not a parameter of the table: what the cluster's version is, and how clients authenticate.
fn computed(name: &str) -> Option<Bson> {
    match name {
        "featureCompatibilityVersion" => Some(Bson::Document(doc! { "version": "6.0" })),
        "authenticationMechanisms" => Some(Bson::Array(Vec::new())),
        VERBOSITIES => Some(Bson::Document(log::verbosities())),
        _ => None,
    }
}

fn get_parameter<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let argument = request.argument()?;
        let options = argument.as_document();
        let details = options.and_then(|o| bsonx::truthy(o, "showDetails")) == Some(true)
            || request.bool_arg("showDetails")? == Some(true);
        let all = argument.as_str() == Some("*")
            || options.and_then(|o| bsonx::truthy(o, "allParameters")) == Some(true)
            || request.bool_arg("allParameters")? == Some(true);
        let parameters = ctx.router.parameters.read();
        let shown = |value: Bson, at_startup: bool, at_runtime: bool| match details {
            true => Bson::Document(
                doc! { "value": value, "settableAtRuntime": at_runtime, "settableAtStartup": at_startup },
            ),
            false => value,
        };
        let mut found = Document::new();
        if all {
            for p in PARAMETERS {
                let value = parameters.get(p.name).unwrap_or(Bson::Null);
                found.insert(p.name, shown(value, true, p.runtime));
            }
            for name in COMPUTED {
                found.extend(
                    computed(name).map(|value| ((*name).to_owned(), shown(value, false, *name == VERBOSITIES))),
                );
            }
        } else {
            for name in named(request) {
                if let Some(p) = parameter(name) {
                    let value = parameters.get(p.name).unwrap_or(Bson::Null);
                    found.insert(p.name, shown(value, true, p.runtime));
                } else if let Some(value) = computed(name) {
                    found.insert(name, shown(value, false, name == VERBOSITIES));
                }
            }
        }
        drop(parameters);
        if found.is_empty() {
            return Err(Error::new(Code::InvalidOptions, "no option found to get"));
        }
        reply(&found)
    })
}

/// The names in the command that are not generic arguments.
fn named(request: &Request) -> impl Iterator<Item = &str> {
    request
        .body()
        .iter_elements()
        .map_while(Result::ok)
        .skip(1)
        .map(|e| e.key().as_str())
        .filter(|name| !GENERIC.contains(name))
}

fn set_parameter<'a>(ctx: &'a Ctx, request: &'a Request) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move {
        let names: Vec<&str> = named(request).collect();
        let [name] = names.as_slice() else {
            let text = match names.len() {
                0 => "no option found to set, use help:true to see options",
                _ => "cannot set more than one parameter at a time",
            };
            return Err(Error::new(Code::InvalidOptions, text));
        };
        if *name == VERBOSITIES {
            return set_verbosities(ctx, request);
        }
        let Some(parameter) = parameter(name) else {
            return Err(Error::new(
                Code::InvalidOptions,
                format!("attempted to set unrecognized parameter [{name}], use help:true to see options "),
            ));
        };
        if !parameter.runtime {
            return Err(Error::new(
                Code::IllegalOperation,
                format!(
                    "not allowed to change [{name}] at runtime; set it in the configuration file or with --setParameter"
                ),
            ));
        }
        let value = match request.get(name) {
            Some(value) => Bson::try_from(value)?,
            None => Bson::Null,
        };
        let mut parameters = ctx.router.parameters.write();
        let was = parameters.get(name).unwrap_or(Bson::Null);
        parameters.set(name, &value).map_err(|text| Error::new(Code::BadValue, text))?;
        if *name == "logLevel" {
            log::set_verbosity(parameters.int("logLevel").clamp(0, 5) as u8);
        }
        drop(parameters);
        tracing::info!(parameter = *name, %was, %value, "server parameter changed");
        reply(&doc! { "was": was })
    })
}

/// `{setParameter: 1, logComponentVerbosity: {…}}`.
fn set_verbosities(ctx: &Ctx, request: &Request) -> Result<Reply> {
    let value = match request.get(VERBOSITIES) {
        Some(bson::RawBsonRef::Document(value)) => Document::try_from(value)?,
        other => {
            let shown = other.map(Bson::try_from).transpose()?.unwrap_or(Bson::Null);
            let text = format!("log component verbosity is not a BSON object: {VERBOSITIES}: {shown}");
            return Err(Error::new(Code::TypeMismatch, text));
        }
    };
    let was = log::verbosities();
    log::set_verbosities(&value).map_err(|text| Error::new(Code::BadValue, text))?;
    let whole = Bson::Int32(i32::from(log::verbosity()));
    ctx.router.parameters.write().set("logLevel", &whole).map_err(|text| Error::new(Code::BadValue, text))?;
    tracing::info!(%value, "log verbosity changed");
    reply(&doc! { "was": was })
}
