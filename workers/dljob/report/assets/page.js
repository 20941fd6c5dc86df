"use strict";
addEventListener("DOMContentLoaded", () => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const title = document.createElement("h1");
  title.textContent = `${data.job.name}: ${data.job.phase}`;
  document.title = title.textContent;
  document.getElementById("page").append(title);
});
