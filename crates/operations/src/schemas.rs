//! JSON schemas of requests and replies, and the fields of a request, made once from the types.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value};

use crate::about::{About, snake_case};
use crate::catalogue::Request;
use crate::reply::Reply;
use crate::rest::Problem;

/// Where an OpenAPI document has its definitions.
const DEFINITIONS: &str = "/components/schemas";
/// Name of the field that holds the operation.
const TAG: &str = "op";

/// Schemas of everything on the wire.
pub(crate) struct Schemas {
    /// One for each variant of [`Request`], with the tag.
    requests: Vec<Value>,
    /// One for each variant of [`Reply`].
    replies: Vec<Value>,
    /// Types that these refer to.
    pub(crate) definitions: Map<String, Value>,
}

/// See [`Schemas`].
pub(crate) static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.definitions_path = DEFINITIONS.into());
    let mut generator = settings.into_generator();
    let requests = variants::<Request>(&mut generator);
    let replies = variants::<Reply>(&mut generator);
    generator.subschema_for::<Problem>();
    Schemas { requests, replies, definitions: generator.take_definitions(true) }
});

/// Schemas of the variants of an enum.
fn variants<T: JsonSchema>(generator: &mut SchemaGenerator) -> Vec<Value> {
    let schema = T::json_schema(generator).to_value();
    match schema.get("oneOf").or_else(|| schema.get("anyOf")) {
        Some(Value::Array(variants)) => variants.clone(),
        _ => Vec::new(),
    }
}

/// A parameter of an operation.
pub(crate) struct Field<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Its schema.
    pub(crate) schema: &'a Value,
    /// Whether it has no default.
    pub(crate) is_required: bool,
}

impl Schemas {
    fn request(&self, about: &About) -> Option<&Value> {
        let op = about.op();
        self.requests.iter().find(|schema| schema["properties"][TAG]["const"] == *op)
    }

    /// The fields of an operation's request, without the tag.
    pub(crate) fn fields(&self, about: &About) -> Vec<Field<'_>> {
        let Some(schema) = self.request(about) else { return Vec::new() };
        let is_required = |name: &str| {
            schema["required"].as_array().is_some_and(|required| required.iter().any(|known| known == name))
        };
        let properties = schema["properties"].as_object().into_iter().flatten().filter(|(name, _)| *name != TAG);
        properties.map(|(name, schema)| Field { name, schema, is_required: is_required(name) }).collect()
    }

    /// The schema of the document in an operation's reply; none: there is no document.
    pub(crate) fn reply(&self, about: &About) -> Option<&Value> {
        let name = snake_case(about.reply);
        self.replies.iter().find_map(|schema| schema["properties"].get(&name))
    }

    /// Whether there is such a reply at all.
    #[cfg(test)]
    pub(crate) fn has_reply(&self, about: &About) -> bool {
        let name = snake_case(about.reply);
        let is_unit = |schema: &Value| {
            schema["const"] == *name || schema["enum"].as_array().is_some_and(|all| all.iter().any(|one| *one == *name))
        };
        self.reply(about).is_some() || self.replies.iter().any(is_unit)
    }

    /// Whether a field may have this type, by the name that JSON Schema gives it.
    pub(crate) fn may_be(&self, schema: &Value, wanted: &str) -> bool {
        match &schema["type"] {
            Value::String(kind) => kind == wanted,
            Value::Array(kinds) => kinds.iter().any(|kind| kind == wanted),
            _ => {
                let referred = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next());
                let choices = [&schema["anyOf"], &schema["oneOf"]].into_iter().filter_map(Value::as_array).flatten();
                referred
                    .and_then(|name| self.definitions.get(name))
                    .into_iter()
                    .chain(choices)
                    .any(|schema| self.may_be(schema, wanted))
            }
        }
    }
}
