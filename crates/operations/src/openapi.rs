//! The description of the HTTP interface, OpenAPI 3.1, made from the catalogue and the schemas.

use serde_json::{Map, Value, json};

use crate::about::{About, Method};
use crate::catalogue::CATALOGUE;
use crate::rest::PREFIX;
use crate::schemas::{Field, SCHEMAS};

/// Names of the parameters in a path pattern. `{path*}` is one that may have `/` in it.
fn parameters_of(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).map(|name| name.trim_end_matches('*'))
}

/// The text of doc comments, in one line.
fn doc_of(about: &About) -> String {
    about.doc.lines().map(str::trim).collect::<Vec<_>>().join(" ").trim().to_owned()
}

/// The alternatives of a schema, also those of a definition that it refers to.
fn alternatives(schema: &Value) -> Vec<Value> {
    let inner = |schema: &Value| Some(schema["anyOf"].as_array()?.iter().flat_map(alternatives).collect());
    let definition = || SCHEMAS.definitions.get(schema["$ref"].as_str()?.rsplit('/').next()?);
    inner(schema).or_else(|| inner(definition()?)).unwrap_or_else(|| vec![schema.clone()])
}

/// The schema of a parameter that is text: absent instead of null, and a number or a name instead
/// of a document.
fn text_schema(schema: &Value) -> Value {
    let is_text = |schema: &Value| schema["type"] != "null" && schema["type"] != "object";
    let mut texts: Vec<_> = alternatives(schema).into_iter().filter(is_text).collect();
    let mut text = match (texts.pop(), texts.is_empty()) {
        (None, _) => return schema.clone(),
        (Some(only), true) => only,
        (Some(last), false) => {
            texts.push(last);
            json!({ "anyOf": texts })
        }
    };
    let only_kind = text["type"].as_array().and_then(|kinds| {
        let mut others = kinds.iter().filter(|kind| **kind != "null");
        let kind = others.next()?.clone();
        others.next().is_none().then_some(kind)
    });
    if let Some(kind) = only_kind {
        text["type"] = kind;
    }
    for key in ["description", "default"] {
        if let Some(value) = schema.get(key) {
            text[key] = value.clone();
        }
    }
    text
}

fn parameter(field: &Field<'_>, place: &str) -> Value {
    let description = field.schema["description"].as_str().unwrap_or_default();
    let is_required = place == "path" || field.is_required;
    let schema = text_schema(field.schema);
    json!({ "name": field.name, "in": place, "required": is_required, "description": description, "schema": schema })
}

/// The request body: an object of these fields.
fn body(fields: &[&Field<'_>]) -> Value {
    let properties: Map<_, _> = fields.iter().map(|field| (field.name.to_owned(), field.schema.clone())).collect();
    let required: Vec<_> = fields.iter().filter(|field| field.is_required).map(|field| field.name).collect();
    let schema =
        json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false });
    json!({ "required": !required.is_empty(), "content": { "application/json": { "schema": schema } } })
}

fn answers(about: &About) -> Value {
    let failure = json!({
        "description": "Failure",
        "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
    });
    let (status, success) = match SCHEMAS.reply(about) {
        None => ("204", json!({ "description": "Success" })),
        Some(schema) => {
            let status = match (about.reply, about.is_long) {
                ("Created", _) => "201",
                (_, true) => "202",
                _ => "200",
            };
            let description = schema["description"].as_str().unwrap_or("Success");
            let document =
                json!({ "description": description, "content": { "application/json": { "schema": schema } } });
            (status, document)
        }
    };
    let mut answers = json!({ status: success, "default": failure });
    if about.reply == "Files" {
        let bytes = json!({ "application/octet-stream": {} });
        answers["200"]["content"]["application/octet-stream"] = json!({});
        answers["206"] = json!({ "description": "A range of a file.", "content": bytes });
        answers["416"] = json!({ "description": "The range begins after the end of the file." });
    }
    answers
}

fn operation(about: &About, method: Method, path: &str, paths: &[&str]) -> Value {
    let fields = SCHEMAS.fields(about);
    let in_path: Vec<_> = parameters_of(path).collect();
    // A field that another pattern has in its path is given there.
    let is_elsewhere = |name: &str| paths.iter().any(|path| parameters_of(path).any(|other| other == name));
    let others: Vec<_> = fields.iter().filter(|field| !is_elsewhere(field.name)).collect();
    let mut parameters: Vec<_> =
        fields.iter().filter(|field| in_path.contains(&field.name)).map(|field| parameter(field, "path")).collect();
    let op = about.op();
    let id = match paths.iter().position(|other| *other == path) {
        None | Some(0) => op,
        Some(number) => format!("{op}_{}", number + 1),
    };
    let mut document = json!({
        "operationId": id,
        "summary": doc_of(about),
        "responses": answers(about),
        "x-role": about.needs.name(),
        "x-effect": about.effect.name(),
        "x-commands": about.commands,
    });
    if method.has_no_body() {
        parameters.extend(others.iter().map(|field| parameter(field, "query")));
    } else if !others.is_empty() {
        document["requestBody"] = body(&others);
    }
    document["parameters"] = Value::Array(parameters);
    document
}

/// The description of the HTTP interface.
pub fn openapi() -> Value {
    let mut paths = Map::new();
    for about in CATALOGUE {
        let Some((method, patterns)) = about.rest() else { continue };
        for path in patterns {
            let item = paths.entry(path.replace("*}", "}")).or_insert_with(|| json!({}));
            item[method.name().to_ascii_lowercase()] = operation(about, method, path, patterns);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Shale",
            "description": "Operations on a pool.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT" },
        },
        "servers": [{ "url": PREFIX }],
        "paths": paths,
        "components": { "schemas": SCHEMAS.definitions },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::about::{Effect, Reach};

    #[test]
    fn each_operation_has_a_place_a_role_a_text_and_a_reply() {
        let mut places = BTreeSet::new();
        for about in CATALOGUE {
            let op = about.op();
            assert!(doc_of(about).ends_with('.'), "{op} has no description");
            assert!(SCHEMAS.has_reply(about), "{op} has no reply '{}'", about.reply);
            assert_eq!(about.audit.is_some(), about.effect != Effect::Read, "{op}: what changes is audited");
            let names: Vec<_> = SCHEMAS.fields(about).iter().map(|field| field.name.to_owned()).collect();
            match about.reach {
                Reach::Socket(why) => assert!(!why.is_empty(), "{op} is not reached over HTTP"),
                Reach::Rest { method, paths } => {
                    for path in paths {
                        assert!(path.starts_with('/') && places.insert((method, *path)), "{op}: {path} is taken");
                        for name in parameters_of(path) {
                            assert!(names.iter().any(|known| known == name), "{op}: no field '{name}' for {path}");
                        }
                    }
                    assert!(about.effect == Effect::Read || method != Method::GET, "{op}: GET changes nothing");
                }
            }
            for field in SCHEMAS.fields(about) {
                assert!(!field.schema["description"].as_str().unwrap_or_default().is_empty(), "{op}: {}", field.name);
            }
        }
    }

    #[test]
    fn the_description_has_all_paths_and_no_reference_into_nothing() {
        let document = openapi();
        let expected: usize = CATALOGUE.iter().filter_map(|about| about.rest()).map(|(_, paths)| paths.len()).sum();
        let items = document["paths"].as_object().unwrap();
        assert_eq!(items.values().map(|item| item.as_object().unwrap().len()).sum::<usize>(), expected);
        let ids: BTreeSet<_> = items
            .values()
            .flat_map(|item| item.as_object().unwrap().values())
            .map(|o| o["operationId"].as_str())
            .collect();
        assert_eq!(ids.len(), expected, "an identifier is used twice");
        let text = document.to_string();
        let references = text.split("\"#/components/schemas/").skip(1).filter_map(|part| part.split('"').next());
        let mut count = 0;
        for name in references {
            assert!(document["components"]["schemas"].get(name).is_some(), "there is no schema '{name}'");
            count += 1;
        }
        assert!(count > 20, "{count} references");
        let set = &document["paths"]["/objects/{object}/properties"]["patch"];
        assert_eq!((&set["x-role"], &set["parameters"][0]["name"]), (&json!("admin"), &json!("object")));
        let schema = &set["requestBody"]["content"]["application/json"]["schema"];
        assert_eq!(schema["required"], json!(["changes"]));
    }

    #[test]
    fn a_parameter_is_text() {
        let document = openapi();
        let of = |path: &str, name: &str| {
            let parameters = document["paths"][path]["get"]["parameters"].as_array().unwrap();
            let mut schema = parameters.iter().find(|parameter| parameter["name"] == name).unwrap()["schema"].clone();
            schema.as_object_mut().unwrap().retain(|key, _| key != "description");
            schema
        };
        assert_eq!(of("/objects", "name"), json!({ "type": "string" }));
        assert_eq!(of("/objects", "kind"), json!({ "$ref": "#/components/schemas/ObjectKind" }));
        assert_eq!(of("/objects", "sort"), json!({ "$ref": "#/components/schemas/ObjectOrder", "default": "name" }));
        for (path, name) in [("/objects", "parent"), ("/objects/{object}/snapshots", "object")] {
            let schema = of(path, name);
            let kinds: Vec<_> = schema["anyOf"].as_array().unwrap().iter().map(|choice| &choice["type"]).collect();
            assert_eq!(kinds, ["integer", "string"], "{path} {name}");
        }
        let files = &document["paths"]["/objects/{object}/files/{path}"]["get"]["responses"]["200"]["content"];
        assert!(files["application/octet-stream"].is_object() && files["application/json"].is_object());
    }

    #[test]
    fn every_figure_of_a_document_is_described() {
        for (name, schema) in &SCHEMAS.definitions {
            for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
                let is_described = schema.get("description").is_some() || schema.get("const").is_some();
                assert!(is_described, "{name}.{field} has no description");
            }
        }
    }
}
